"""Implements the ports: journals in SQLite and PostgreSQL, sites, file stores, notifiers, and settings files."""

__all__ = ["closed_folders", "journals", "notifiers", "records", "settings", "sites", "stores"]
