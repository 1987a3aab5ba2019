"""All that exists for version 0.1.2: its files, dictionaries, shapes and import paths."""
