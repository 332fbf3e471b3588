"""Brings the inputs of an attempt into its folder: those that are complete, and those that still grow."""

__all__ = ["growing", "placing"]
