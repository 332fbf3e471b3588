"""What the computers of one cluster share and nobody else sees: a folder, and an ordinary account with its home in it.

Inside, everything that could lead to another's files is empty: folders for temporary files, homes, shared memory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.engines.debian import nobody_installing

COPY_SECONDS_MAX = 60
USER, NUMBER = "anna", 23_456
_HIDDEN = ("/dev/shm", "/home", "/root", "/var/tmp")  # noqa: S108 # to be hidden
_ASIDE = "/mnt"


class Estate:
    """A folder below that of temporary files, which is all that is seen of it by whoever is prepared so."""

    def __init__(self, name: str, *, hidden: Iterable[Path] = ()) -> None:
        """Make it, with the account; the cluster that uses it removes it. Others may be `hidden` besides."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"pilotage-{name}-"))
        self.folder.chmod(0o755)
        self.home = self.folder / "home" / USER
        self.home.mkdir(parents=True)
        self.home.chmod(0o700)
        os.chown(self.home, NUMBER, NUMBER)
        self._hidden = _outermost([Path(tempfile.gettempdir()), *map(Path, _HIDDEN), *hidden])

    def prepare(self) -> list[str]:
        """The commands that leave nothing in sight but the folder, and make the account known, beside those there are now.

        Whoever asks has installed what it needs: a package brings the account of its server. All of /etc is a copy: what
        was put over a single file would be gone as soon as somebody outside installs another one in its place.
        """
        settings = self.folder / "etc"
        with nobody_installing():
            subprocess.run(["cp", "--archive", "/etc/.", settings], check=True, timeout=COPY_SECONDS_MAX)
        for name, line in (
            ("passwd", f"{USER}:x:{NUMBER}:{NUMBER}::{self.home}:/bin/sh"),
            ("group", f"{USER}:x:{NUMBER}:"),
        ):
            known = settings / name
            known.write_text(f"{known.read_text().rstrip()}\n{line}\n")
        folder = shlex.quote(str(self.folder))
        return [
            f"mount --bind {folder} {_ASIDE}",
            *(f"mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(str(each))}" for each in self._hidden),
            f"mkdir -p {folder}",
            f"mount --move {_ASIDE} {folder}",
            f"mount --bind {folder}/etc /etc",
        ]

    def share(self, name: str) -> Path:
        """A folder in it that everybody may look into; made where it is missing."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        return folder

    def close(self) -> None:
        """Remove what is left of it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def bring(self, file: Path, name: str) -> Path:
        """Copy a file into the home of the account, closed to others, as its user would; its path there."""
        target = self.home / name
        shutil.copyfile(file, target)
        target.chmod(0o600)
        os.chown(target, NUMBER, NUMBER)
        return target


def as_user(estate: Estate, **environment: str) -> Sequence[str]:
    """What goes before a command, inside, for it to run in the ordinary account, with nothing but this in its environment."""
    told = {"HOME": str(estate.home), "USER": USER, "LOGNAME": USER, "PATH": "/usr/bin:/bin", **environment}
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", "-i"]
    return [*words, *(f"{name}={value}" for name, value in told.items())]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Those that are there and are not below another."""
    there = sorted({path.resolve() for path in paths if path.is_dir()})
    return [path for path in there if not any(other in path.parents for other in there)]
