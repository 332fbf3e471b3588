"""Drives the engine and looks after its jobs: submission, late stages, publishing and removal of files."""

__all__ = [
    "clean",
    "output_claims",
    "package_names",
    "preview",
    "publishing",
    "refusals",
    "resubmission",
    "runner",
    "stall",
]
