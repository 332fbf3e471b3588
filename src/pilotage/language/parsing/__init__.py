"""Turns a tree into a checked definition: kinds of values, records with short forms, rules; also the JSON Schema."""

__all__ = ["document", "iterations", "kinds", "python_types", "records", "rules", "schema", "sites", "worlds"]
