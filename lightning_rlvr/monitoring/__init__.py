"""Read-only callbacks: samples, environment, run folder."""
