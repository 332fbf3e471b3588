"""The short way for plain attempts: one command, with files that have names. Most attempts of most jobs are.

One that lasts a millisecond feels every call between two calls of the system. What is done here is what `inputs` and
`outputs` do, for the files that nothing is unusual about; anything else is left as it is, and they look into it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from pilotage.agent.inputs import Placed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pilotage.agent.hashing import KnownFiles

SMALL_BYTES = 16 * 1024
"""An output of less is read at once."""

# What is named here the short way sees to, or need not; whatever else is said, now or later, is for the long one.
PLAIN_WORK = frozenset({
    "path", "name", "index", "folder", "staged", "mark", "folder_mark", "inputs", "binaries", "keep_failed", "software",
})  # fmt: skip
PLAIN_BINARY = frozenset({"argv", "environment", "outputs"})
MADE_INPUT = frozenset({"name", "sha256", "size_bytes", "made"})
"""What is said of a file that a package of the job made."""
_OWN = ".pilotage"
# Nobody waits at what is no regular file, no link is followed, and that it was read need not be written down.
_LOOKING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_NOATIME", 0)


def plain_binary(assignment: Mapping[str, Any], work: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The one command of a plain attempt; None where the attempt is anything else."""
    binaries: Sequence[Mapping[str, Any]] = work.get("binaries", ())
    if len(binaries) != 1 or not PLAIN_WORK.issuperset(work) or not PLAIN_BINARY.issuperset(binaries[0]):
        return None
    demand = assignment.get("demand")
    if demand and demand.get("nodes", 1) > 1:
        return None
    return binaries[0]


def link_known(
    inputs: Sequence[Mapping[str, Any]], *, folder: str, scratch: int, known: KnownFiles
) -> dict[str, Placed]:
    """Link the inputs that packages of the job made and whose content is known to be right, up to the first other one.

    `scratch` is the open folder that they are put into.
    """
    placed: dict[str, Placed] = {}
    for each in inputs:
        name = each["name"]
        if each.keys() != MADE_INPUT or "/" in name:
            break
        source = f"{folder}/{name}"
        try:
            status = os.lstat(source)
            size_bytes = status.st_size
            if size_bytes != each["size_bytes"] or not known.is_known(status, each["sha256"]):
                break
            os.link(source, name, dst_dir_fd=scratch)
        except (OSError, ValueError):
            break
        placed[name] = Placed(name, source, status.st_ino, size_bytes, status.st_mtime_ns)
    return placed


def stage_small(
    outputs: Sequence[Mapping[str, Any]],
    *,
    scratch: int,
    target: str,
    known: KnownFiles,
    placed: Collection[Placed],
) -> list[dict[str, Any]] | None:
    """Stage the only output, where it is a small new file; the manifest. None where it is not: nothing was done then.

    `scratch` is the open folder that it is in, `placed` the inputs there.
    """
    if len(outputs) != 1 or "pattern" in outputs[0]:
        return None
    name = outputs[0].get("name", "")
    if not name or "/" in name or name.startswith(_OWN) or not name.isascii():
        return None
    try:
        descriptor = os.open(name, _LOOKING, dir_fd=scratch)
        try:
            status = os.fstat(descriptor)
            size_bytes = status.st_size
            # What has another name somewhere could be changed by that one later.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or size_bytes >= SMALL_BYTES:
                return None
            for each in placed:  # whose other name somebody may have removed
                if each.inode == status.st_ino:
                    return None
            content = os.read(descriptor, size_bytes + 1)  # to see that it does not grow
        finally:
            os.close(descriptor)
        if len(content) != size_bytes:
            return None
        os.rename(name, target, src_dir_fd=scratch)
    except (OSError, ValueError):
        return None
    return [{"name": name, "size_bytes": size_bytes, "sha256": known.keep_content(status, content)}]
