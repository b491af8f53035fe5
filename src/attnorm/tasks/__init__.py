"""The tasks. Each subpackage contains the features, the loss, the metric and the task class of one task."""
