"""A run's page: a single HTML file that needs only a browser."""
