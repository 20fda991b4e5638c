"""Verifiers: completions to verdicts."""
