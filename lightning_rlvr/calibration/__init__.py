"""Reward calibrators: raw rewards to advantages."""
