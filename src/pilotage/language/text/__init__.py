"""Parses texts: strict YAML and JSON to trees, templates, patterns, file names, quantities."""

__all__ = ["ambiguity", "emit", "locators", "names", "patterns", "programs", "quantities", "templates", "tree", "yaml"]
