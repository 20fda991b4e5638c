"""torchmetrics metrics."""
