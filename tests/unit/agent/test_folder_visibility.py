"""An agent reads and writes in a folder only if it is the very folder of its service; else everything is brought."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.files import AGAIN_SECONDS, MARK_FILE, REMEMBERED_MAX, FolderVisibility, VisibleFolders
from tests.kit.agent_runs import MARK, Place, log_of, place_in


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder of a job, which the slot sees, and a service that has other files of the same names."""
    with place_in(tmp_path) as made:
        (made.folder / "in").write_text("of here")
        made.marks()
        served = tmp_path / "server" / "files"
        served.mkdir(parents=True)
        (served / "in").write_text("of the service")
        yield made


def replace_folders(place: Place) -> None:
    """Others are at the paths now, with all that is in them but the marks of this service."""
    for each in (place.folder / ".pilotage-staged", place.staged):
        (each / MARK_FILE).write_text("of another service, or an earlier one")


def copied(place: Place, **said: Any) -> dict[str, bytes]:
    """Copy the input to an output, the work saying what the place's marks were; where the output came to."""
    place.attempt += 1
    ref = {"job": "j1", "package": "1.1.1", "attempt": place.attempt}
    work = {
        "path": "r/001/001/001", "name": "r", "index": 0, "folder": str(place.folder), "staged": str(place.staged),
        "mark": MARK, "folder_mark": f".pilotage-staged/{MARK_FILE}", "inputs": [{"name": "in"}],
        "binaries": [{"argv": ["cp", "in", "out"], "outputs": [{"name": "out"}]}], **said,
    }  # fmt: skip
    outcome = place.runner.run({"ref": ref}, work, on_phase=lambda *_: None, fetch=place.fetch)
    assert outcome.payload["exit_code"] == "SUCCESS", outcome.payload
    name = f"1.1.1-{place.attempt}-0"
    places = {"here": place.staged, "service": place.root / "server" / "staged"}
    found = {where: (each / name).read_bytes() for where, each in places.items() if (each / name).exists()}
    (content,) = found.values()
    assert hashlib.sha256(content).hexdigest() == outcome.payload["manifest"][0]["sha256"]
    return found


def test_the_very_folder_is_read_and_outputs_are_renamed_into_it(place: Place) -> None:
    assert copied(place) == {"here": b"of here"}
    assert not (place.root / "server" / "staged").exists()


def test_another_folder_at_the_same_path_is_neither_read_nor_written(place: Place) -> None:
    replace_folders(place)
    assert copied(place) == {"service": b"of the service"}
    assert place.staged_names() == []


def test_a_work_without_marks_is_brought_everything(place: Place) -> None:
    assert copied(place, mark="", folder_mark="") == {"service": b"of the service"}


def test_a_tree_without_its_mark_is_not_read_though_outputs_are_staged_here(place: Place) -> None:
    assert copied(place, folder_mark="") == {"here": b"of the service"}
    shutil.rmtree(place.folder / ".pilotage-staged")
    place.workplace.visibility.look({"folder": str(place.folder), "staged": str(place.staged), "mark": MARK})
    assert copied(place) == {"here": b"of the service"}


def test_one_mark_will_do_where_outputs_are_staged_within_the_tree(place: Place) -> None:
    place.staged = place.folder / ".pilotage-staged"
    assert copied(place, folder_mark="") == {"here": b"of here"}


def test_a_folder_that_is_gone_since_it_was_seen_is_missed_and_the_service_asked(place: Place) -> None:
    assert copied(place) == {"here": b"of here"}
    shutil.rmtree(place.staged)
    shutil.rmtree(place.folder)
    assert copied(place) == {"service": b"of the service"}
    assert not place.staged.exists()
    assert not place.folder.exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_only_be_read_is_read_and_outputs_are_handed_over(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.rename

    def closed(source: str, target: str, **folders: int) -> None:
        if str(place.staged) in str(target):
            raise OSError(number, os.strerror(number))
        real(source, target, **folders)

    monkeypatch.setattr(os, "rename", closed)
    assert copied(place) == {"service": b"of here"}


def test_a_link_that_leads_nowhere_here_is_followed_by_the_service(place: Place) -> None:
    (place.folder / "in").unlink()
    (place.folder / "in").symlink_to("/no/such/place/of/this/node")
    assert copied(place) == {"here": b"of the service"}


def test_scripts_do_not_run_in_a_folder_that_is_another(place: Place) -> None:
    script = {"argv": ["/bin/sh", "-c", "pwd"]}
    assert log_of(place.run("/bin/true", pre=script), "pre-stdout").strip() == str(place.folder)
    payload = place.run("/bin/true", pre=script, mark="another").payload
    assert "which is not visible here" in payload["exit_message"]
    # One that nobody could mark is taken for what it seems to be: nothing else would run there at all.
    assert log_of(place.run("/bin/true", pre=script, mark="", folder_mark=""), "pre-stdout").strip() == str(
        place.folder
    )


def test_a_container_is_not_shown_a_folder_that_is_another(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin" / "podman"
    engine.write_text('#!/bin/sh\necho "$*"\n')
    engine.chmod(0o755)
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}) as place:
        shown = f"--volume {place.folder}:{place.folder}:ro"
        assert shown in log_of(place.run("true", container={"image": "an/image"}))
        assert shown not in log_of(place.run("true", container={"image": "an/image"}, mark="another"))
        payload = place.run("true", container={"image": "an.sif"}, mark="another").payload
        assert "'an.sif' is in" in payload["exit_message"]


def test_finished_binaries_are_kept_in_the_pilots_own_folder_where_the_services_is_not_seen(place: Place) -> None:
    kept = place.root / "state" / "kept" / "j1-1.1.1-1"
    binaries = [
        {"argv": ["/bin/sh", "-c", "echo made >> made; echo once >&2"]},
        {"argv": ["/bin/sh", "-c", f"cat made; [ -e {place.root}/go ]"]},
    ]
    said: dict[str, Any] = {"binaries": binaries, "kept": str(kept), "mark": "another"}
    assert place.run_work(said).payload["exit_status"] == 1
    assert not (place.root / "state").exists()
    (place.root / "go").touch()
    outcome = place.run_work(said)
    assert outcome.payload["exit_code"] == "SUCCESS"
    assert (log_of(outcome), log_of(outcome, "stderr")) == ("made\n", "")


def test_what_is_seen_is_remembered_and_looked_at_again_after_a_while(tmp_path: Path) -> None:
    clock = Clock()
    visibility = FolderVisibility(clock)
    staged = tmp_path / "job" / "staged"
    work = {"folder": str(tmp_path / "job"), "staged": str(staged), "mark": "one"}
    assert visibility.of(work) == VisibleFolders(folder=False, staged=False)
    staged.mkdir(parents=True)
    (staged / MARK_FILE).write_text("one")
    assert not visibility.of(work).staged  # as it was
    assert visibility.of({**work, "mark": "two"}) == VisibleFolders(folder=False, staged=False)
    assert visibility.of(work) == VisibleFolders(folder=True, staged=True)  # another mark was asked for meanwhile
    (staged / MARK_FILE).unlink()
    assert visibility.of(work).folder
    clock.now += AGAIN_SECONDS
    assert not visibility.of(work).folder
    (staged / MARK_FILE).write_text("one")
    clock.now += AGAIN_SECONDS
    assert visibility.of(work).folder


def test_what_an_earlier_service_gave_out_is_still_seen_after_a_new_one_came(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / MARK_FILE).write_text("one\ntwo\n")
    for mark, is_seen in (("one", True), ("two", True), ("on", False), ("one\ntwo", False)):
        work = {"folder": str(tmp_path), "staged": f"{tmp_path}/s", "mark": mark}
        assert FolderVisibility().of(work) == VisibleFolders(is_seen, is_seen)


def test_no_more_than_so_many_jobs_are_remembered(tmp_path: Path) -> None:
    visibility = FolderVisibility()
    for number in range(2 * REMEMBERED_MAX):
        visibility.of({"folder": str(tmp_path), "staged": f"{tmp_path}/{number}", "mark": "m"})
    assert len(visibility._looked) <= REMEMBERED_MAX


def test_what_is_no_file_is_no_mark(tmp_path: Path) -> None:
    work = {"folder": str(tmp_path), "staged": f"{tmp_path}/s", "mark": "m"}
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / MARK_FILE)
    assert not FolderVisibility().of(work).staged
    (tmp_path / "s" / MARK_FILE).unlink()
    (tmp_path / "s" / MARK_FILE).mkdir()
    assert not FolderVisibility().of(work).staged
    (tmp_path / "s" / MARK_FILE).rmdir()
    (tmp_path / "true").write_text("m")
    (tmp_path / "s" / MARK_FILE).symlink_to(tmp_path / "true")
    assert not FolderVisibility().of(work).staged
