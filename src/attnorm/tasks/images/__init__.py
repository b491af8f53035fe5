"""Image classification: the label of an image from its pixels."""
