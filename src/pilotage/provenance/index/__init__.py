"""Finds records by what they have: their attributes, the query language, and how storages feed indexes."""

from __future__ import annotations

__all__ = ["attributes", "feed", "query", "search"]
