"""Formats of other systems, read and written: DAGMan and WfFormat."""
