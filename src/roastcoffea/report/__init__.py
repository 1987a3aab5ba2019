"""Tables for the terminal and the reference of metrics."""
