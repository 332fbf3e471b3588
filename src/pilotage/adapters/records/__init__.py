"""Stores job records in a folder: compressed blocks of parts in append-only packs, and a catalogue that follows from them."""

from __future__ import annotations

__all__ = ["copies", "folder"]
