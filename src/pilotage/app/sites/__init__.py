"""Reads the entries of a folder's sites, and connects to each."""

__all__ = ["caches", "connections", "dialects", "entries"]
