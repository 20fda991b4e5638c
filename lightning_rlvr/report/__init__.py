"""The runs of a sweep as a verdict: paired statistics, difficulty, length, equal compute, and the page of it all."""
