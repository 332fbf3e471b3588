from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.containers import Engines, remove_container
from pilotage.agent.attempt.diagnosis import Failure
from tests.kit.agent_runs import Place, log_of, place_in

# It stands for an engine: it shows its words and runs what follows the image, as the engine would.
ENGINE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$PILOTAGE_FOLDER/words"
while [ "$1" != an/image ] && [ "$1" != docker://an/image ]; do shift; done
shift
exec "$@"
"""


def _engine(folder: Path, name: str, text: str = ENGINE) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def _place(tmp_path: Path, *engines: str) -> Place:
    for name in engines:
        _engine(tmp_path / "bin", name)
    return Place(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})


@pytest.mark.parametrize("engine", ["apptainer", "podman", "docker"])
def test_a_command_runs_by_the_engine_that_is_there(tmp_path: Path, engine: str) -> None:
    place = _place(tmp_path, engine)
    container = {"image": "an/image", "engine": engine}
    binary = {"environment": {"TINT": "two words"}, "outputs": [{"name": "a"}]}
    outcome = place.shell('echo "$TINT" > a; echo $PILOTAGE_PACKAGE', container=container, binary=binary)
    assert place.outputs(outcome) == {"a": b"two words\n"}
    assert log_of(outcome) == "1.1.1\n"
    words = (place.folder / "words").read_text()
    scratch = tmp_path / "scratch" / "slot-1"
    assert f"{place.folder}:{place.folder}:ro" in words
    if engine == "apptainer":
        assert words.startswith(f"apptainer exec --pwd {scratch} --bind {scratch}:{scratch} ")
    else:
        assert f"--workdir {scratch} --volume {scratch}:{scratch} " in words
        for name in ("SERVER", "TOKEN_FILE", "SPOOL", "CA_FILE", "SITE", "NODE", "MARK"):
            assert f"--env PILOTAGE_{name} " in words
        assert "--env TINT" in words
        assert f"--user {os.geteuid()}:{os.getegid()}" in words
        assert "--name pilotage-j1-1.1.1-1-" in words
    place.close()


@pytest.mark.parametrize("engine", ["apptainer", "docker"])
def test_what_runs_inside_is_shown_its_spool_and_its_token_and_no_others(tmp_path: Path, engine: str) -> None:
    _engine(tmp_path / "bin", engine)
    spools = tmp_path / "spools"
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    with place_in(tmp_path, environment=environment, spool=str(spools)) as place:
        said: dict[str, Any] = {"container": {"image": "an/image", "engine": engine}, "token": "secret"}
        outcome = place.shell(
            'stat -c %a "$PILOTAGE_TOKEN_FILE"; cat "$PILOTAGE_TOKEN_FILE"; ls $PILOTAGE_SPOOL', **said
        )
    assert log_of(outcome).split() == ["600", "secret"]
    words = (place.folder / "words").read_text()
    (spool,) = (each for each in words.split() if each.startswith(f"{spools}"))
    assert spool == f"{spools}/j1-1.1.1-1:{spools}/j1-1.1.1-1"
    token = tmp_path / "scratch" / "slot-1.token"
    assert f" {token}:{token}:ro " in words


def test_a_node_without_an_engine_refuses_and_says_what_it_looked_for(tmp_path: Path) -> None:
    with place_in(tmp_path, environment={"PATH": str(tmp_path / "empty")}) as place:
        payload = place.run("/bin/true", container={"image": "an/image"}).payload
    assert (payload["reason"], payload["exit_code"]) == ("command-not-found", "EXECUTION_FAILED")
    assert "looked for apptainer, singularity, podman, docker" in payload["exit_message"]


def test_an_image_file_needs_apptainer(tmp_path: Path) -> None:
    _engine(tmp_path / "bin", "docker")
    said: dict[str, Any] = {"scratch": "/s", "folder": str(tmp_path), "key": "k", "variables": (), "gpus": 0}
    engines = Engines(str(tmp_path / "bin"))
    with pytest.raises(Failure, match="is a file, which docker cannot run"):
        engines.wrap({"image": "x.sif"}, ["true"], **said)
    (tmp_path / "x.sif").touch()
    _engine(tmp_path / "bin", "apptainer")
    wrapped = Engines(str(tmp_path / "bin")).wrap({"image": "x.sif"}, ["true"], **{**said, "gpus": 1})
    assert wrapped.argv[-3:] == ["--nv", str(tmp_path / "x.sif"), "true"]


def test_gpus_are_asked_for_and_a_user_keeps_the_id(tmp_path: Path) -> None:
    said: dict[str, Any] = {"scratch": "/s", "folder": str(tmp_path), "key": "k", "variables": (), "gpus": 2}
    for name in ("podman", "docker"):
        _engine(tmp_path / "bin", name)
    engines = Engines(str(tmp_path / "bin"), is_root=False)
    podman = " ".join(engines.wrap({"image": "i", "engine": "podman"}, ["true"], **said).argv)
    assert "--userns keep-id" in podman
    assert "--device nvidia.com/gpu=all" in podman
    assert "--gpus 2" in " ".join(engines.wrap({"image": "i", "engine": "docker"}, ["true"], **said).argv)


def test_an_engine_that_fails_itself_is_a_failure_of_the_platform(tmp_path: Path) -> None:
    _engine(tmp_path / "bin", "podman", "#!/bin/sh\necho no route to the registry >&2\nexit 125\n")
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) as place:
        payload = place.run("/bin/true", container={"image": "an/image"}).payload
    assert payload["reason"] == "platform-failure"
    first = payload["exit_message"].partition("\n")[0]
    assert first.endswith("could not run the container of the image 'an/image': no route to the registry")


@pytest.mark.parametrize(
    "name, status, said",
    [
        (
            "podman",
            125,
            "Error: initializing source docker://x: reading manifest latest in docker.io/x: manifest unknown",
        ),
        ("podman", 125, "Error: reading manifest: requested access to the resource is denied"),
        ("docker", 125, "docker: Error response from daemon: pull access denied for x, repository does not exist."),
        ("docker", 125, "docker: invalid reference format."),
        (
            "apptainer",
            255,
            "FATAL:   Unable to handle docker://x uri: GET https://…: MANIFEST_UNKNOWN: manifest unknown",
        ),
    ],
)
def test_an_image_that_is_nowhere_to_be_had_is_no_fault_of_the_platform(
    tmp_path: Path, name: str, status: int, said: str
) -> None:
    _engine(tmp_path / "bin", name, f"#!/bin/sh\necho '{said}' >&2\necho see the help >&2\nexit {status}\n")
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) as place:
        payload = place.run("/bin/true", container={"image": "an/image", "engine": name}).payload
    assert payload["reason"] == "command-not-found"
    assert payload["exit_message"].startswith(f"cannot get the image 'an/image': {said}")


def test_an_image_file_that_is_not_there_is_told_before_any_engine_is_asked(tmp_path: Path) -> None:
    _engine(tmp_path / "bin", "apptainer", "#!/bin/sh\nexit 3\n")
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) as place:
        payload = place.run("/bin/true", container={"image": "sim.sif"}).payload
    assert (payload["reason"], payload["exit_message"]) == (
        "command-not-found", f"the image 'sim.sif' does not exist in {place.folder}"
    )  # fmt: skip


def test_a_command_that_fails_in_a_container_fails_as_it_does_outside(tmp_path: Path) -> None:
    _engine(tmp_path / "bin", "apptainer", "#!/bin/sh\necho 'file not found' >&2\nexit 255\n")
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) as place:
        payload = place.run("/bin/true", container={"image": "an/image"}).payload
    assert (payload["reason"], payload["exit_status"]) == ("application-error", 255)


def test_a_stopped_container_is_removed(tmp_path: Path) -> None:
    text = (
        "#!/bin/sh\n[ $1 = rm ] && { echo $* > " + str(tmp_path) + "/removed; exit; }\nwhile :; do sleep 0.01; done\n"
    )
    _engine(tmp_path / "bin", "podman", text)
    with place_in(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) as place:
        said: dict[str, Any] = {"container": {"image": "an/image"}, "demand": {"wall_seconds": 0.1}}
        assert place.run("/bin/true", **said).payload["reason"] == "wall-time"
    assert (tmp_path / "removed").read_text().startswith("rm --force pilotage-j1-1.1.1-1-")
    remove_container(["/no/such/engine"])
