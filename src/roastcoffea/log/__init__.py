"""Transport of records: entry kinds, packing, and writing and reading the log."""
