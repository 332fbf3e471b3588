"""One mutation tried: written into a copy of the tree, its tests run, the copy made whole again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.mutation.operators import Mutation

SECONDS_MAX = 900
SECONDS_MAX_TEST = 180
"""A mutated loop may have no end; a test that takes this long is one that noticed."""

NOTICED_BY_EXIT = {1: "a test failed", 2: "tests could not be collected", 3: "pytest stopped", 4: "nothing could start"}


class ToolError(Exception):
    """The tests of a mutation could not be run at all, so nothing is known about it."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one mutation: `noticed` says by what, and is empty where no test noticed."""

    mutation: Mutation
    noticed: str
    tests: int

    @property
    def survived(self) -> bool:
        """Whether nothing noticed."""
        return not self.noticed


def copy_tree(root: Path, target: Path) -> Path:
    """A copy of what git tracks or would track, in which files may be broken."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    shutil.rmtree(target, ignore_errors=True)
    for name in filter(None, os.fsdecode(listing.stdout).split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    return target


def try_out(mutation: Mutation, *, tree: Path, tests: Sequence[Sequence[str]], broad: Sequence[str]) -> Verdict:
    """Run the tests that run the line, then those whose programs do, then the broad ones, until one notices."""
    asked = sum(map(len, tests))
    file = tree / mutation.path
    source, times = file.read_bytes(), file.stat()
    try:
        file.write_bytes(mutation.apply(source))
        for chosen in (*tests, broad):
            if chosen and (noticed := _noticed(chosen, tree=tree)):
                return Verdict(mutation, noticed, asked)
    finally:
        file.write_bytes(source)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled of it before is right again
    return Verdict(mutation, "", asked)


def _noticed(tests: Sequence[str], *, tree: Path) -> str:
    names = tree / "mutation-tests.txt"
    names.write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "--quiet", "--no-header", f"--timeout={SECONDS_MAX_TEST}"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", f"@{names}"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {SECONDS_MAX} s"
    if done.returncode == 0:
        return ""
    if done.returncode not in NOTICED_BY_EXIT or "not found:" in done.stderr:
        raise ToolError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line.removeprefix("FAILED ") for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else NOTICED_BY_EXIT[done.returncode]
