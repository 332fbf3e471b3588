"""Expands a definition and its lists to numbered packages, their files and commands, and the graph these imply."""

__all__ = [
    "advice",
    "blocks",
    "edge_files",
    "expand",
    "expansion",
    "lists",
    "packages",
    "producers",
    "resolve",
    "software",
    "targets",
]
