"""Stores files on computers that OpenSSH reaches: a small client of SFTP, version 3, over the system's own `ssh`."""

__all__ = ["protocol", "session", "store"]
