"""Applies events to the state of the engine, one function for each type."""

__all__ = ["on_attempts", "on_jobs", "on_packages", "on_sites"]
