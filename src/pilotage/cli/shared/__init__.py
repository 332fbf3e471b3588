"""Options, output, progress, errors and job names for all commands."""

__all__ = [
    "errors",
    "job_names",
    "job_run",
    "numpy_loader",
    "options",
    "output",
    "problems",
    "progress",
    "server",
    "streams",
]
