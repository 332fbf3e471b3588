"""Defines the settings with their defaults, and the layers they come from."""

__all__ = ["engine", "layers", "package_settings", "settings", "stores"]
