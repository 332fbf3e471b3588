"""What the finished binaries of a package made, kept until the package is done: a later attempt goes on behind them.

For each binary there is a folder with its files, and a list of them with what the system says of each. Where a file
cannot share its blocks with its copy it is a second name of the same file, and a later binary may have written into
it: it is only taken up if it is as it was kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import TYPE_CHECKING, Any

from pilotage.agent.copying import copy_sharing, link_or_copy
from pilotage.agent.names import check_name, make_parents, names_below
from pilotage.agent.scratch import remove_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LIST = "list.json"
_FILES = "files"


class Kept:
    """The kept work of one package, for the attempts of one epoch at one site."""

    def __init__(self, assignment: Mapping[str, Any], work: Mapping[str, Any], folder: str) -> None:
        """Say of which package, and where; nothing is read yet."""
        ref = assignment["ref"]
        self._folder = os.path.join(folder, ref["package"])
        self._draft = f"{ref['attempt']}-{os.getpid()}"
        self._keys = _keys(assignment, work)

    def resume(self, scratch: str) -> int:
        """Put the files of the finished binaries into a folder; how many binaries need not run any more."""
        done = 0
        for key in self._keys[:-1]:
            if not self._take_up(os.path.join(self._folder, key), scratch):
                break
            done += 1
        return done

    def keep(self, number: int, scratch: str, *, without: Collection[str]) -> None:
        """Keep everything that is in the folder after a binary, but the inputs. What cannot be kept is done again."""
        draft = os.path.join(self._folder, f"{self._draft}.draft")
        try:
            files = {}
            os.makedirs(os.path.join(draft, _FILES), exist_ok=True)
            for name in names_below(scratch):
                source, target = os.path.join(scratch, name), os.path.join(draft, _FILES, name)
                if name in without or not os.path.isfile(source) or os.path.islink(source):
                    continue
                make_parents(os.path.join(draft, _FILES), name)
                if not copy_sharing(source, target):
                    link_or_copy(source, target)
                files[name] = _described(target)
            with open(os.path.join(draft, _LIST), "w", encoding="utf-8") as written:
                json.dump(files, written)
            os.rename(draft, os.path.join(self._folder, self._keys[number]))
        except (OSError, ValueError):
            remove_tree(draft)

    def forget(self) -> None:
        """The package needs it no more."""
        remove_tree(self._folder)

    def _take_up(self, kept: str, scratch: str) -> bool:
        try:
            with open(os.path.join(kept, _LIST), encoding="utf-8") as written:
                files: dict[str, list[int]] = json.load(written)
            for name, described in files.items():
                check_name(name)
                if _described(os.path.join(kept, _FILES, name)) != described:
                    return False
            for name in files:
                source, target = os.path.join(kept, _FILES, name), os.path.join(scratch, name)
                make_parents(scratch, name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
                if not copy_sharing(source, target):
                    link_or_copy(source, target)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        except ValueError:
            return False
        return True


def _described(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _keys(assignment: Mapping[str, Any], work: Mapping[str, Any]) -> list[str]:
    """A name for the state behind each binary: what it and those before it were asked, with which inputs."""
    import hashlib

    ref = assignment["ref"]
    digest = hashlib.sha256(_said([ref["job"], ref["package"], assignment.get("epoch", 1), work.get("container")]))
    digest.update(_said([assignment.get("inputs", ()), work.get("inputs", ())]))
    keys = []
    for number, binary in enumerate(work["binaries"]):
        digest.update(_said(binary))
        keys.append(f"{number + 1}-{digest.hexdigest()[:32]}")
    return keys


def _said(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
