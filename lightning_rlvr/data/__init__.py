"""Problems, prompts and the data module."""
