"""Results as plain data for people: sheets, and what renders them in a terminal, a notebook, Markdown and HTML."""
