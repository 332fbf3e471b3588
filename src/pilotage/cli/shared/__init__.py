"""What all commands share: options, output, progress, errors and job names."""

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
