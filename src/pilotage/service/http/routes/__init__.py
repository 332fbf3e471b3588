"""The routes of HTTP, by subject."""
