"""Answers questions about the book, for whoever shows something: HTTP, the command line, the monitor."""
