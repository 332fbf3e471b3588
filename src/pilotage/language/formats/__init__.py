"""Reads and writes the formats of other systems: DAGMan and WfFormat."""

__all__ = ["dagman", "wfformat"]
