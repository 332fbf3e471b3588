"""Reads a tree into a checked definition, with kinds of values, records, short forms and rules; also the JSON Schema."""

__all__ = ["document", "iterations", "kinds", "python_types", "records", "rules", "schema", "sites", "worlds"]
