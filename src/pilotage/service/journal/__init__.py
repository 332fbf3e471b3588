"""The one writer of the book, its retention, and its rebuild."""
