"""Tells whether a folder is on a network file system, where SQLite's shared memory, and sometimes its locks, fail."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

NETWORK_KINDS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "panfs", "orangefs", "davfs", "fuse.davfs2",
})  # fmt: skip

_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_kind(folder: Path, *, mounts: Path = MOUNTS) -> str:
    """The type of the network file system of a folder; empty if it is not on a known one."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""  # no such list on this system: assume a local disk
    path = str(folder.resolve())
    best, kind = "", ""
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), parts[1])
        inside = path == point or path.startswith(point if point.endswith("/") else point + "/")
        # Of two file systems mounted at one path the later one is visible.
        if inside and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind if kind in NETWORK_KINDS else ""
