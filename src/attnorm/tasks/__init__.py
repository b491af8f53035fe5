"""The tasks: each folder has the features, the LightningModule, the metric and the task class of one task."""
