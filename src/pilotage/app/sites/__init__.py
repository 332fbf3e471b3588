"""Reads the entries of a folder's sites, and connects to each."""

__all__ = ["connections", "dialects", "entries"]
