"""Held-out problems: samples, where they are kept, and what they add up to."""
