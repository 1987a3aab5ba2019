"""Everything for compatibility with version 0.1.2: files, dictionaries, shapes and import paths."""
