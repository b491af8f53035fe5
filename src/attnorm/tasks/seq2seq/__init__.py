"""What the tasks share that map a text to a text: features, teacher forcing and generation."""
