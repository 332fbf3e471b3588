"""Runs jobs: drives the engine, writes the book, acts at sites, answers HTTP, and sends notices."""

__all__ = [
    "announcement",
    "core",
    "errors",
    "http",
    "index_server",
    "jobs",
    "journal",
    "messages",
    "notifications",
    "process",
    "server",
    "sites",
    "tokens",
    "transfers",
    "works",
]
