"""The mathematics: pure functions from tensors to tensors."""
