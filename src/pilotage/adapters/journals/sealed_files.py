"""How the file of a sealed job is called: by its id where any file system can have such a name, and no other id is alike."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FOLDER = "jobs"
UNFINISHED = ".unfinished"

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# Names of devices elsewhere, whatever stands behind their first dot.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


def sealed_path(folder: Path, job: str) -> Path:
    """The file of a sealed job in the folder of a book."""
    return folder / FOLDER / f"{sealed_name(job)}.sqlite"


def unfinished_path(folder: Path, job: str) -> Path:
    """Where that file is written before it is whole."""
    return folder / FOLDER / f"{sealed_name(job)}{UNFINISHED}"


def sealed_name(job: str) -> str:
    """A name for an id; of ids with capitals, which may differ only in case, a part of the hash is in it."""
    # No id has a tilde in it.
    name = f"~{job}" if job.partition(".")[0].lower() in _DEVICES else job
    return name if _PLAIN.fullmatch(job) else f"{name}~{hashlib.sha256(job.encode()).hexdigest()[:12]}"
