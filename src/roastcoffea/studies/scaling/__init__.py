"""How runs speed up with workers."""
