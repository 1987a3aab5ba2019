"""Plain, frozen records of a run in seconds and bytes, without arithmetic."""
