"""Expands a definition and its lists to numbered packages with their files and commands, and the dependency graph."""

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
