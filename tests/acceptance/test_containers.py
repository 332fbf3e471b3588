"""Packages in real containers, through the real program: podman, and an image made here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.engines.podman import IMAGE, Podman
from tests.kit.real_runs import Place, own_seconds, place_in, processes_with, wait_until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, podman: Podman) -> Iterator[Place]:
    """One folder for all: every test has a job and files of its own."""
    with place_in(tmp_path_factory.mktemp("containers"), environment=podman.environment) as place:
        yield place


def test_a_package_runs_in_its_image_on_its_own_files(place: Place) -> None:
    (place.folder / "in.txt").write_text("from outside\n")
    place.document(
        f"pilotage: 1\njob: contained\nstages:\n  - container: {{image: '{IMAGE}', engine: podman}}\n"
        "    inputs: [in.txt]\n    outputs: [out.txt, who.txt]\n    environment: {TINT: 'two  words'}\n"
        "    run:\n      - /bin/sh\n      - -c\n"
        '      - \'cat in.txt > out.txt; ls / >> out.txt; echo "$TINT" "$1" "$PILOTAGE_PACKAGE" > who.txt\'\n'
        '      - sh\n      - "it\'s $(touch evil)"\n'
    )
    place.run("run")
    lines = (place.folder / "out.txt").read_text().splitlines()
    assert lines[0] == "from outside"
    assert "bin" in lines
    assert "home" not in lines  # it is another system than this one
    assert (place.folder / "who.txt").read_text() == "two  words it's $(touch evil) 1.1.1\n"
    assert (place.folder / "out.txt").stat().st_uid == os.geteuid()
    assert not list(place.folder.rglob("evil"))
    job = place.told("outputs", "contained")["job"]
    (attempt,) = place.told("status", f"{job}/1.1.1")["attempts"]
    assert re.fullmatch("sha256:[0-9a-f]{64}", attempt["container_digest"])


# What `pilotage tag` says, by the means of the image.
TAGS = """
token=$(cat "$PILOTAGE_TOKEN_FILE")
said='{"events": [{"source": "application", "stream": "inside", "n": 1, "time": 1.0, "type": "Tagged",
  "job": "'$PILOTAGE_JOB'", "package": "'$PILOTAGE_PACKAGE'", "data": {"name": "from", "value": "inside"}}]}'
wget -q -O - --header "Authorization: Bearer $token" --header "Content-Type: application/json" \
  --post-data "$said" "$PILOTAGE_SERVER/agent/events"
touch "$PILOTAGE_SPOOL/written"
"""


def test_what_runs_inside_can_speak_of_itself_and_has_a_spool(place: Place) -> None:
    (place.folder / "tags.sh").write_text(TAGS)
    place.document(
        f"pilotage: 1\njob: speaking\nstages:\n  - container: {{image: '{IMAGE}', engine: podman}}\n"
        "    inputs: [tags.sh]\n    retry: {attempts_max: 1}\n    run: [/bin/sh, -e, tags.sh]\n"
    )
    job = place.told("run")["job"]
    assert place.told("status", f"{job}/1.1.1")["package"]["tags"] == {"from": "inside"}
    spools = place.folder / ".pilotage"
    wait_until(  # folders go while they are looked at, which `rglob` does not allow for
        lambda: not any("written" in files for _, _, files in os.walk(spools)), "the end of a spool without events"
    )


def test_a_container_that_outlasts_its_limit_is_removed(place: Place, podman: Podman) -> None:
    seconds = own_seconds()
    place.document(
        f"pilotage: 1\njob: lasting\nstages:\n  - container: {{image: '{IMAGE}', engine: podman}}\n"
        f"    retry: {{attempts_max: 1}}\n    resources: {{wall_time: 2s}}\n    run: /bin/sleep {seconds}\n"
    )
    assert "it ran longer than its 2 s" in place.run("run", code=1).stdout
    assert podman.containers() == []
    assert processes_with(seconds) == []


def test_what_fails_inside_is_told_as_if_it_had_run_outside(place: Place) -> None:
    place.document(
        f"pilotage: 1\njob: failing\nstages:\n  - container: {{image: '{IMAGE}', engine: podman}}\n"
        "    retry: {attempts_max: 1}\n    run: [/bin/sh, -c, 'echo no luck >&2; exit 7']\n"
    )
    done = place.run("run", code=1)
    assert "exit status 7" in done.stdout
    assert "| no luck" in done.stdout


def test_an_engine_that_is_not_here_is_refused_with_its_name(place: Place) -> None:
    place.document(
        "pilotage: 1\njob: nowhere\nstages:\n  - container: {image: 'localhost/none:1', engine: apptainer}\n"
        "    run: /bin/true\n"
    )
    done = place.run("run", code=1)
    assert "command-not-found" in done.stdout
    assert "this node has no engine: looked for apptainer" in done.stdout
