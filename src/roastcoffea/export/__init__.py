"""The import path of the older prototype."""
