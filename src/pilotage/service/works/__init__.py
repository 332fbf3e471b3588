"""Writes work orders for attempts, records their results, and finds earlier results to reuse."""

__all__ = ["capture", "documents_beside", "manifests", "reuse", "software_times", "work_orders"]
