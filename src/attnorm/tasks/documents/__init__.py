"""Document classification: the label of a document of several sentences."""
