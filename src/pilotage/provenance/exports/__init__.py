"""Writes histories in the formats of others, and reads records back from crates."""

from __future__ import annotations

__all__ = ["crate", "crate_reader", "openlineage", "prov_json", "shared", "wfformat"]
