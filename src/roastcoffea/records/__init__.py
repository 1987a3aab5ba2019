"""What was seen: plain, frozen records in seconds and bytes, without arithmetic."""
