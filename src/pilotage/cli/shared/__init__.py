"""Options, output, progress, errors and names of jobs, as all commands share them."""

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
