"""Recording of analyses without changes to their code."""
