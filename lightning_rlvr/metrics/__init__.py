"""Metrics that are exact over ranks."""
