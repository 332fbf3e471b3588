"""Links that lead out of the folder, through the real program: what is read through them counts, and none is written through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in

LONG_AGO = 1_600_000_000

READS = "pilotage: 1\njob: reads\nstages:\n  - inputs: [in.dat, far/more.dat]\n    outputs: [out.dat]\n    shell: cat in.dat far/more.dat > out.dat\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with place_in(tmp_path / "here") as made:
        yield made


def test_an_input_behind_a_link_is_the_file_that_the_link_leads_to(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name, text in (("in.dat", "one\n"), ("more.dat", "more\n"), ("other.dat", "two\n")):
        (elsewhere / name).write_text(text)
        os.utime(elsewhere / name, (LONG_AGO, LONG_AGO))
    (place.folder / "in.dat").symlink_to(elsewhere / "in.dat")
    (place.folder / "far").symlink_to(elsewhere)
    place.document(READS)
    place.run("run")
    assert (place.folder / "out.dat").read_text() == "one\nmore\n"
    assert place.told("plan")["would_run"] == 0

    # Changed in place, with the time set back: only the system's own stamp tells.
    with (elsewhere / "in.dat").open("r+") as file:
        file.write("ONE\n")
    os.utime(elsewhere / "in.dat", (LONG_AGO, LONG_AGO))
    assert place.told("plan")["listed"][0]["changed"] == "input in.dat"
    place.run("run")
    assert (place.folder / "out.dat").read_text() == "ONE\nmore\n"

    (place.folder / "in.dat").unlink()
    (place.folder / "in.dat").symlink_to(elsewhere / "other.dat")
    assert place.told("plan")["listed"][0]["changed"] == "input in.dat"
    place.run("run")
    assert (place.folder / "out.dat").read_text() == "two\nmore\n"
    assert (elsewhere / "in.dat").read_text() == "ONE\n"


def test_an_output_that_is_a_link_out_of_its_folder_is_refused_with_the_reason(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere" / "secret"
    secret.write_text("not made here\n")
    place.document(
        "pilotage: 1\njob: links\nstages:\n  - outputs: [out.dat]\n    retry: {attempts_max: 1}\n"
        f"    shell: ln -s {secret} out.dat\n"
    )
    done = place.run("run", code=1)
    assert "missing-output" in done.stdout
    assert "the output 'out.dat' is a link that leads out of the package's folder" in done.stdout
    assert not os.path.lexists(place.folder / "out.dat")


def test_a_result_is_a_file_of_its_own_though_the_command_gave_it_the_name_of_another(
    place: Place, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere" / "outside"
    outside.write_text("as it was\n")
    place.document(
        f"pilotage: 1\njob: hard\nstages:\n  - outputs: [out.dat]\n    shell: ln {outside} out.dat || cp {outside} out.dat\n"
    )
    place.run("run")
    outside.write_text("changed later\n")
    assert (place.folder / "out.dat").read_text() == "as it was\n"


def test_a_result_takes_the_place_of_a_link_and_is_not_written_through_it(place: Place, tmp_path: Path) -> None:
    place.document(
        "pilotage: 1\njob: moved\nstages:\n  - outputs: [out.dat]\n    run: [sh, -c, 'echo first > out.dat']\n"
    )
    place.run("run")
    kept = tmp_path / "elsewhere" / "kept.dat"
    (place.folder / "out.dat").rename(kept)  # as one does with what takes too much room
    (place.folder / "out.dat").symlink_to(kept)
    place.document(
        "pilotage: 1\njob: moved\nstages:\n  - outputs: [out.dat]\n    run: [sh, -c, 'echo second > out.dat']\n"
    )
    place.run("run")
    assert not (place.folder / "out.dat").is_symlink()
    assert (place.folder / "out.dat").read_text() == "second\n"
    assert kept.read_text() == "first\n"
