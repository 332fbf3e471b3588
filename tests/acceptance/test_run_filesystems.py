"""Disks that are full, or read-only, under the real program: it names what is wrong, waits, and goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.errors import EngineError
from tests.engines.sshd import SshServer
from tests.kit.real_runs import Mounts, own_mounts, place_in, wait_until

GATED = """\
pilotage: 1
job: gated
stages:
  - each: {n: 1..4}
    shell: |
      if [ {n} = 2 ]; then echo {n} > GATE/started; cat GATE/go > /dev/null; fi
      echo {n} > out-{n}.txt
    outputs: ["out-{n}.txt"]
"""


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    with own_mounts() as mounts:
        yield mounts


class Gate:
    """Two pipes outside of the folders that are broken: who has started, and who may go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        os.mkfifo(folder / "started")
        os.mkfifo(folder / "go")

    def document(self) -> str:
        """Four packages, of which the second waits at the gate."""
        return GATED.replace("GATE", str(self.folder))

    def wait(self) -> None:
        """Wait until the second runs."""
        assert (self.folder / "started").read_text()

    def open(self) -> None:
        """Let it go on."""
        (self.folder / "go").write_text("")


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to the last byte, with a file that can be removed again."""
    ballast = folder / "ballast"
    handle = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    os.write(handle, bytes(size))
            except OSError:
                continue
    finally:
        os.close(handle)
    return ballast


def test_a_scratch_disk_that_is_too_small_is_named_and_a_larger_one_heals_it(tmp_path: Path, mounts: Mounts) -> None:
    with place_in(tmp_path, mounts=mounts) as place:
        mounts.small(tmp_path / ".pilotage" / "scratch", "2m")
        place.document(
            "pilotage: 1\njob: large\nstages:\n  - outputs: [out.dat]\n    shell: head -c 5000000 /dev/zero > out.dat\n"
        )
        process = place.begin("run")
        assert process.stderr is not None
        told = next(line for line in process.stderr if "will be retried later" in line)
        assert "disk-full at local" in told
        assert not (tmp_path / "out.dat").exists()
        mounts.small(tmp_path / ".pilotage" / "scratch", "64m")
        assert "1 of 1 package done, 1 healed" in place.ended(process).stdout
        assert (tmp_path / "out.dat").stat().st_size == 5_000_000


def test_a_full_disk_under_the_book_is_waited_for(tmp_path: Path, mounts: Mounts) -> None:
    gate = Gate(tmp_path / "gate")
    results = tmp_path / "results"
    results.mkdir()
    with place_in(results, mounts=mounts) as place:
        mounts.small(tmp_path / "state", "16m")
        mounts.small(tmp_path / "state" / "scratch", "16m")  # the packages themselves have room
        place.state_at(tmp_path / "state")
        place.document(gate.document())
        process = place.begin("run", "--slots", "1")
        gate.wait()
        wait_until((results / "out-1.txt").exists, "the first output")
        ballast = fill(mounts.seen(tmp_path / "state"))
        assert process.stderr is not None
        full = f"the disk of {tmp_path / 'state'} is full"
        assert any(full in line for line in process.stderr)  # it says so, though nothing has failed yet
        assert f"trouble: {full}" in place.run("status").stdout
        assert full in place.told("status")["progress"]["trouble"]
        assert "is not well: the disk of the service is full" in place.run("doctor", code=1).stdout
        gate.open()
        wait_until(lambda: "the book cannot be written" in place.log(), "a warning")
        assert len(list(results.glob("out-*"))) == 1  # what is not in the book has not happened
        ballast.unlink()
        assert "4 of 4 packages done" in place.ended(process).stdout
        assert len(list(results.glob("out-*"))) == 4
        place.close()
        assert "sound" in place.run("book", "check").stdout


def test_a_full_disk_under_the_records_is_told_and_the_record_is_made_when_there_is_room(
    tmp_path: Path, mounts: Mounts
) -> None:
    (tmp_path / "pilotage.toml").write_text("[provenance]\nrecorded_after_seconds = 1\n")
    with place_in(tmp_path, mounts=mounts) as place:
        mounts.small(tmp_path / ".pilotage" / "records", "1m")
        ballast = fill(mounts.seen(tmp_path / ".pilotage" / "records"))
        place.document("pilotage: 1\njob: j\nstages:\n  - {shell: echo 1 > a, outputs: [a]}\n")
        place.run("serve", "--background", "--port", "0")
        job = place.told("run")["job"]
        wait_until(lambda: "records cannot be stored yet" in place.run("status", job).stdout, "the trouble")
        assert "is full" in place.told("status", job)["progress"]["trouble"]
        assert place.log().count("records cannot be stored yet") == 1
        ballast.unlink()
        wait_until(lambda: "trouble" not in place.run("status", job).stdout, "the record")
        assert place.told("provenance", "show", job)["record"]["revision"] == 1
        assert place.run("provenance", "fsck").stderr == "sound\n"


def test_a_service_that_cannot_start_for_want_of_room_says_so_and_the_run_may_be_tried_again(
    tmp_path: Path, mounts: Mounts
) -> None:
    with place_in(tmp_path, mounts=mounts) as place:
        mounts.small(tmp_path / ".pilotage", "2m")
        ballast = fill(mounts.seen(tmp_path / ".pilotage"))
        place.document("pilotage: 1\njob: j\nstages:\n  - run: touch a\n    outputs: [a]\n")
        refused = place.run("run", code=3)
        assert f"the disk of {tmp_path / '.pilotage'} is full" in refused.stderr
        assert "free some space" in refused.stderr
        ballast.unlink()
        mounts.small(tmp_path / ".pilotage", "32m")
        place.run("run")


def test_a_full_disk_under_the_index_holds_the_job_and_a_release_goes_on(tmp_path: Path, mounts: Mounts) -> None:
    gate = Gate(tmp_path / "gate")
    mounts.small(tmp_path / "small", "1m")
    (tmp_path / ".pilotage").mkdir(mode=0o700)
    (tmp_path / ".pilotage" / "work.sqlite").symlink_to(tmp_path / "small" / "work.sqlite")
    with place_in(tmp_path, mounts=mounts) as place:
        place.document(gate.document())
        process = place.begin("run", "--slots", "1")
        gate.wait()
        wait_until((tmp_path / "out-1.txt").exists, "the first output")
        ballast = fill(mounts.seen(tmp_path / "small"))
        gate.open()
        done = place.ended(process, code=3)
        assert "cannot be published" in done.stdout
        assert "free space" in done.stdout
        ballast.unlink()
        job = done.stdout.partition(":")[0]
        place.run("release", job)
        assert "4 of 4 packages done" in place.run("attach", job).stdout
        assert len(list(tmp_path.glob("out-*"))) == 4
        assert "nothing to do" in place.run("run").stdout  # all of it is known as ours


def test_results_that_cannot_be_written_are_refused_before_anything_is_spent(tmp_path: Path, mounts: Mounts) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with place_in(results, mounts=mounts) as place:
        place.document("pilotage: 1\njob: nowhere\nstages:\n  - shell: date > out.txt\n    outputs: [out.txt]\n")
        mounts.mount("--bind", str(results), str(results))
        mounts.mount("-o", "remount,bind,ro", str(results))
        refused = place.run("run", code=2)  # the state would be in there, too
        assert "ead-only file system" in refused.stderr
        place.state_at(tmp_path / "state")
        refused = place.run("run", code=2)
        assert "ead-only file system" in refused.stderr
        assert str(results) in refused.stderr
        assert not (tmp_path / "state").exists()  # nothing was spent, and nothing is left


def test_results_that_become_read_only_hold_the_job_and_a_release_goes_on(tmp_path: Path, mounts: Mounts) -> None:
    gate = Gate(tmp_path / "gate")
    results = tmp_path / "results"
    results.mkdir()
    mounts.mount("--bind", str(results), str(results))
    with place_in(results, mounts=mounts) as place:
        place.state_at(tmp_path / "state")
        place.document(gate.document())
        process = place.begin("run", "--slots", "1")
        gate.wait()
        wait_until((results / "out-1.txt").exists, "the first output")
        mounts.mount("-o", "remount,bind,ro", str(results))
        gate.open()
        done = place.ended(process, code=3)
        assert "cannot be published" in done.stdout
        assert "Read-only file system" in done.stdout
        assert len(list(results.glob("out-*"))) == 1
        mounts.mount("-o", "remount,bind,rw", str(results))
        job = done.stdout.partition(":")[0]
        place.run("release", job)
        assert "4 of 4 packages done" in place.run("attach", job).stdout
        assert len(list(results.glob("out-*"))) == 4
        assert (results / "out-2.txt").read_text() == "2\n"


def test_a_network_file_system_without_hard_links_is_warned_of_and_the_job_completes(
    root: Path, tmp_path: Path, mounts: Mounts, ssh_server: SshServer
) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    shutil.copytree(root / "examples" / "reconstruction", far)
    near.mkdir()
    try:
        mounted = ssh_server.mounted(far, near, within=mounts.prefix, options="disable_hardlink")
        with mounted, place_in(near, mounts=mounts) as place:
            done = place.run("run")
            assert "12 of 12 packages done" in done.stdout
            assert "a network file system" in done.stderr
            assert "with a rollback journal" in place.log()
            assert not (far / ".pilotage" / "book.sqlite-wal").exists()
            found = {each["hop"]: each for each in place.told("doctor")["findings"]}
            assert {found[hop]["verdict"] for hop in ("file system", "state folder: hard links", "socket")} == {"warn"}
            assert "fuse.sshfs" in found["file system"]["message"]
            assert "nothing to do" in place.run("run").stdout
    except EngineError as error:
        if "/dev/fuse" in str(error) or "fuse: mount failed" in str(error):
            pytest.skip(f"privilege: {error}")
        raise
    assert (far / "all-run001.root").read_text().endswith("total 9\n")
