"""Checks what must hold in every simulated world, one promise in each checker."""

__all__ = ["observer", "provisioning"]
