"""What tells the batch jobs and files of one service from those of another at the same site."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from pilotage.adapters.closed_folders import make_closed

IDENTITY_FILE = "identity"


def site_prefix(state: Path, site: str) -> str:
    """A name for what the service of a state folder has at a site: its jobs begin with it, and its folder there has it.

    Two services may know a site by one name, and one service two sites of one cluster.
    """
    told = hashlib.sha256(f"{_identity(state)}\n{site}".encode()).hexdigest()
    return f"pilotage-{told[:10]}"


def _identity(state: Path) -> str:
    """A number of the state folder's own, made once; a folder that is made anew has another."""
    file = state / IDENTITY_FILE
    if not file.exists():
        make_closed(state)
        draft = state / f".{IDENTITY_FILE}-{secrets.token_hex(8)}"
        draft.write_text(secrets.token_hex(16), "ascii")
        try:
            with contextlib.suppress(FileExistsError):  # another was quicker
                os.link(draft, file)
        finally:
            draft.unlink()
    return file.read_text("ascii").strip()
