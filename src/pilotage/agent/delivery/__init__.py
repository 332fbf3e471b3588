"""Delivers events: the producer that writes them, the spool on disk, the courier that sends them."""

__all__ = ["courier", "producer", "spool"]
