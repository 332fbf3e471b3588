"""Writes work orders for attempts, records their results, and finds earlier results to reuse."""

__all__ = [
    "capture",
    "consumed",
    "documents_beside",
    "estimates",
    "job_files",
    "kept_outputs",
    "manifests",
    "reuse",
    "run_history",
    "site_files",
    "stale_results",
    "stored_copies",
    "work_orders",
]
