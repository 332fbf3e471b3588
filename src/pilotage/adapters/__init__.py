"""Implements the ports: journals in SQLite and PostgreSQL, sites, stores of files, notifiers, and files of settings."""

__all__ = ["closed_folders", "journals", "notifiers", "settings", "sites", "stores"]
