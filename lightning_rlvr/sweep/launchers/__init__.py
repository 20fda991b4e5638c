"""Where the cells of a sweep run: one launcher for each file, file = short name."""
