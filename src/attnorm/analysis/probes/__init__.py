"""What the results of probes say: differences with intervals, a table, and a page."""
