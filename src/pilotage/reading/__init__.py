"""Answers questions about the book for HTTP, and for the command line where no service runs."""

__all__ = [
    "access",
    "cached_files",
    "healing",
    "latencies",
    "package_times",
    "packages",
    "queries",
    "run_estimates",
    "stale_results",
    "stored_elsewhere",
    "view_builders",
    "views",
]
