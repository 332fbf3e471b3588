"""Folds events into facts, and derives states, answers to queries, statistics and notices from them."""

__all__ = ["codec", "fold", "notices", "query", "rows", "statistics", "ulm"]
