"""A node that has other folders at the paths of the service: nothing there is taken for the service's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.app.service.credentials import tokens_of
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import find_service
from tests.kit.real_runs import Mounts, Place, own_mounts, place_in, wait_until

DOCUMENT = """
pilotage: 1
job: apart
stages:
  - name: one
    each: {{number: [1, 2]}}
    inputs: [in.txt]
    outputs: ["one-{{number}}.txt"]
    run: {script} in.txt one-{{number}}.txt {{number}}
  - name: two
    each: {{number: [1, 2]}}
    inputs: ["one-{{number}}.txt"]
    outputs: ["two-{{number}}.txt"]
    run: {script} one-{{number}}.txt two-{{number}}.txt {{number}}
"""
NAMES = ("one-1.txt", "one-2.txt", "two-1.txt", "two-2.txt")
SCRIPT = """#!/bin/sh
cat "$1" > "$2"
echo "$PILOTAGE_NODE" "$(stat --format %i "$2")" > "{site}/at-$2"
"""


@contextmanager
def piloted(place: Place, site: Path, mounts: Mounts) -> Iterator[None]:
    """An agent with two slots in a mount namespace, which ends with the block."""
    served = find_service(place.state)
    assert served is not None
    words = [sys.executable, "-I", "-S", str(site / "agent.pyz"), "pilot", f"--server={served.url}"]
    words += [f"--token-file={site / 'token'}", f"--state={site / 'state'}", "--request=by-hand-1", "--site=local"]
    process = subprocess.Popen(
        [*mounts.prefix, *words, "--slots=2", "--node=far-away"], cwd=site, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_files_of_another_file_system_at_the_same_path_are_neither_taken_nor_written(tmp_path: Path) -> None:
    home, site = tmp_path / "home", tmp_path / "site"
    home.mkdir()
    site.mkdir()
    with own_mounts() as mounts, place_in(home, environment={"PILOTAGE_ENGINE_INTERVAL_SECONDS": "1"}) as place:
        (home / "in.txt").write_text("of the service\n")
        script = site / "work.sh"
        script.write_text(SCRIPT.format(site=site))
        script.chmod(0o755)
        place.document(DOCUMENT.format(script=script))
        place.run("serve", "--background", "--port", "0", "--slots", "1")
        (site / "token").touch(0o600)
        (site / "token").write_text(tokens_of(place.state, Settings()).for_pilot("local"))
        shutil.copy(next(place.state.glob("agent-*.pyz")), site / "agent.pyz")
        # The node has a folder of the same name with a state folder in it and files that were made there once.
        mounts.mount("-t", "tmpfs", "tmpfs", str(home))
        there = mounts.seen(home)
        (there / ".pilotage" / "staged").mkdir(parents=True)
        for name in ("in.txt", "one-1.txt", "one-2.txt", "two-1.txt"):
            (there / name).write_text("of this node!!\n")
        before = sorted(there.rglob("*"))
        with piloted(place, site, mounts):
            wait_until(lambda: list((site / "state").glob("spool/*.events")), "the agent speaks")
            assert far_or_here(place, site) == dict.fromkeys(NAMES, ("far-away", False))
        assert sorted(there.rglob("*")) == before
        # Where the folder is the service's own, outputs are renamed into it.
        for name in NAMES:
            (home / name).unlink()
        found = far_or_here(place, site)
        assert {name: renamed for name, (_, renamed) in found.items()} == dict.fromkeys(NAMES, True)
        assert "far-away" not in {node for node, _ in found.values()}


def far_or_here(place: Place, site: Path) -> dict[str, tuple[str, bool]]:
    """Run the job anew; on which node each output was made, and whether it is the very file that the command wrote."""
    job = place.told("submit", "--fresh")["job"]
    place.run("attach", job)
    assert place.told("status", job)["job"]["state"] == "DONE"
    found = {}
    for name in NAMES:
        file = place.folder / name
        assert file.read_text() == "of the service\n"
        node, inode = (site / f"at-{name}").read_text().split()
        found[name] = (node, int(inode) == file.stat().st_ino)
    return found
