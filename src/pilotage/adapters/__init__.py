"""Implements the ports: journals in SQLite and PostgreSQL, sites, file stores, notifiers, and settings files."""

__all__ = ["closed_folders", "journals", "notifiers", "record_index", "records", "settings", "sites", "stores"]
