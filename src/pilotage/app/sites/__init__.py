"""The sites of a folder: their entries, and a connection to each."""
