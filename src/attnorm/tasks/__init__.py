"""What a model is trained for: one LightningModule a task, its metrics, the optimizer."""
