"""Sheets: human-readable results as plain data, rendered in terminals, notebooks, Markdown and HTML."""
