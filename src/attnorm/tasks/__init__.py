"""The tasks. Each subpackage contains the features, the LightningModule, the metric and the task class of one task."""
