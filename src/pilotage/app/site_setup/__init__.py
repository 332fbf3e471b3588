"""Discovers a new site, writes it to the file of sites, and tests it."""

__all__ = ["discovery", "editing", "testing"]
