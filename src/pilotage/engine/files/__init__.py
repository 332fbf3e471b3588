"""Brings files to sites before packages start there, keeps them as long as asked, and stores and disposes of outputs."""

__all__ = [
    "affinity",
    "copying",
    "disposal",
    "eviction",
    "fold_files",
    "holding",
    "keeping",
    "prefetch",
    "purging",
    "queries",
    "restoring",
    "storing",
]
