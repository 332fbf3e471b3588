"""Reads and writes the files of settings, keys and certificates."""

__all__ = ["settings_files", "tls", "tokens"]
