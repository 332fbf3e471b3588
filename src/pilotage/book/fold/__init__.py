"""Folds events into rows: each event once, in any order, with the same result."""

__all__ = ["cached_files", "facts", "finals", "intake", "join", "replay"]
