"""Evidence ablations: what a prompt looks like without its evidence."""
