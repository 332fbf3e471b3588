"""Defines the frozen values that every other room shares; nothing in it acts."""

__all__ = [
    "answers",
    "errors",
    "events",
    "exchange",
    "exit_codes",
    "jobs",
    "locators",
    "records",
    "reference",
    "resources",
    "settings",
    "site",
    "sites",
    "states",
    "svg",
    "texts",
    "version",
]
