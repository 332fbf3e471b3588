"""A new site: discovered, written to its file, and tested."""
