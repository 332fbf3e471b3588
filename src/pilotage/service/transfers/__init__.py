"""Copies files between stores, the caches of sites and site agents: limited, verified, resumed and counted."""

__all__ = [
    "cache_folder",
    "fetching",
    "file_orders",
    "ledger",
    "leftover_copies",
    "meter",
    "moving_files",
    "pool",
    "publisher",
    "replicas",
    "storing",
    "streaming",
    "transfers",
]
