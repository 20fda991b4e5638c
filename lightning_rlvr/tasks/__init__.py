"""Verifiable tasks that need no download."""
