"""`pilotage site add` and `test` on a real batch system, here and over a real ssh; and the hop that fails is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.real_runs import Place, place_in, wait_until

HOPS = [
    "reach", "scheduler", "install", "service", "submit", "starts", "python", "server", "exchange", "package", "outputs",
]  # fmt: skip
SSH = """\
#!{python}
import os
import sys

words = sys.argv[1:]
if "--" in words and len(words) > words.index("--") + 2:
    words[-1] = "env SLURM_CONF={configuration} " + words[-1]
os.execv("{ssh}", ["ssh", "-F", "{told}", *words])
"""
"""The user's own ssh, which knows the way and finds the cluster there."""
AT_NODE_NO_PYTHON = '["[ -z \\"$SLURM_JOB_ID\\" ] || exec /no/such/python"]'
"""Lines of shell by which the login node has a Python, and the node that runs the pilot has not."""


@pytest.fixture
def place(slurm_cluster: SlurmCluster, ssh_server: SshServer, tmp_path: Path) -> Iterator[Place]:
    """A folder from which the cluster is reached by its commands, and over ssh; its service ends with the test."""
    programs, work = tmp_path / "bin", tmp_path / "work"
    for each in (programs, work):
        each.mkdir()
    told = {"python": sys.executable, "configuration": slurm_cluster.configuration, "ssh": "/usr/bin/ssh"}
    (programs / "ssh").write_text(SSH.format(**told, told=ssh_server.configuration()))
    (programs / "ssh").chmod(0o755)
    environment = {**slurm_cluster.environment(), "PATH": f"{programs}:{os.environ['PATH']}"}
    with place_in(work, environment=environment) as found:
        yield found


def add(place: Place, name: str, *words: str) -> Any:
    shared = ["--folder", str(place.folder.parent / "shared"), "--python", sys.executable]
    return place.told("site", "add", name, *words, *shared)


def write(place: Place, name: str, **fields: str) -> None:
    """One more site in the file, by hand."""
    said = {"folder": str(place.folder.parent / "shared"), "python": sys.executable, **fields}
    line = ", ".join(f"{key}: {value}" for key, value in said.items())
    file = place.folder / "sites.yaml"
    text = file.read_text() if file.exists() else "pilotage: 1\nsites:\n"
    file.write_text(f"{text}  - {{name: {name}, kind: slurm, idle: 2, {line}}}\n")


def probe_through(place: Place, name: str, *, code: int = 0) -> Any:
    return place.told("site", "test", name, "--timeout", "60", code=code)


def test_a_cluster_is_added_and_a_pilot_goes_through_every_hop(
    place: Place, ssh_server: SshServer, slurm_cluster: SlurmCluster
) -> None:
    made = add(place, "here", "--slots", "2")
    assert (made["found"]["kind"], made["entry"]["wall_time_seconds"]) == ("slurm", 86_400)
    assert made["entry"]["memory_bytes"] == 2 * 2000 << 20  # of eight cores that share 16,000 MiB
    assert [each["name"] for each in made["found"]["queues"]][:2] == ["main", "short"]
    made = add(place, "far", ssh_server.address, "--queue", "short")
    assert (made["entry"]["address"], made["entry"]["wall_time_seconds"]) == (ssh_server.address, 300)
    for name in ("here", "far"):
        told = probe_through(place, name)
        assert ([each["hop"] for each in told["hops"]], told["failed"]) == (HOPS, None)
        assert all(each["ok"] and each["seconds"] >= 0 for each in told["hops"])
    listed = {each["site"]: each for each in place.told("site", "list")["sites"]}
    assert {*listed} == {"local", "here", "far"}
    assert [listed[name]["slots"] for name in ("here", "far")] == [2, 1]
    assert [file.name for file in place.folder.iterdir() if file.name.startswith("site-test")] == []
    slurm_cluster.command("scancel", "--me")
    wait_until(lambda: not slurm_cluster.command("squeue", "--noheader").split(), "pilots end")


def test_the_hop_that_fails_is_named_in_the_words_of_whoever_stood_in_the_way(
    place: Place, slurm_cluster: SlurmCluster
) -> None:
    write(place, "nowhere", address="ssh://nobody@127.0.0.1:9")
    write(place, "nofolder", folder="/proc/none")
    write(place, "noqueue", queue="nosuch")
    write(place, "nopython", setup=AT_NODE_NO_PYTHON)
    write(place, "bound", setup=AT_NODE_NO_PYTHON, mode="bound")
    expected = {
        "nowhere": ("reach", "refused"),
        "nofolder": ("install", "/proc/none"),
        "noqueue": ("submit", "nosuch"),
        "nopython": ("python", "/no/such/python"),
        "bound": ("python", "/no/such/python"),
    }
    for name, (hop, words) in expected.items():
        told = probe_through(place, name, code=1)
        last = told["hops"][-1]
        assert (told["failed"], last["hop"], words in last["stderr"]) == (hop, hop, True), last
        assert all(each["ok"] for each in told["hops"][:-1])
    tests = place.told("query", "--jobs", "name=site-test")["jobs"]
    assert {each["place"] for each in tests} == {"purged"}  # nothing else is left of them
    listed = {each["site"]: each for each in place.told("site", "list")["sites"]}
    assert "/no/such/python" in listed["nopython"]["last_words"]
    assert "nothing more is submitted" in listed["nopython"]["closed"]


def test_a_job_that_waits_for_a_site_at_which_no_pilot_starts_says_so(place: Place) -> None:
    write(place, "noqueue", queue="nosuch")
    place.document("pilotage: 1\njob: waits\nstages:\n  - {shell: echo > a, outputs: [a], executor: noqueue}\n")
    place.run("run", "--detach")

    def trouble() -> str:
        return str(place.told("status")["progress"].get("trouble", ""))

    wait_until(lambda: "nosuch" in trouble(), "the refusal of the batch system is told")
    assert "no pilot could start at noqueue" in trouble()


def test_after_some_dead_starts_nothing_more_is_submitted_until_the_entry_is_mended(place: Place) -> None:
    (place.folder / "pilotage.toml").write_text("[engine]\ndead_start_seconds = 0.5\ndead_starts_max = 2\n")
    write(place, "broken", setup=AT_NODE_NO_PYTHON)
    place.document("pilotage: 1\njob: waits\nstages:\n  - {shell: echo > a, outputs: [a], executor: broken}\n")
    place.run("run", "--detach")

    def shown() -> Any:
        return place.told("site", "show", "broken")

    wait_until(lambda: shown()["site"]["status"] == "hibernated", "it is put to sleep")
    told = shown()
    assert (told["site"]["dead_starts"], len(told["pilots"])) == (2, 2)
    assert "2 pilots in a row ended before making contact" in told["site"]["message"]
    assert "/no/such/python" in told["site"]["last_words"]
    (asleep,) = (each for each in place.told("site", "explain", "broken")["reasons"] if each["stage"] == "status")
    assert "nothing more is submitted there until a person wakes it" in asleep["message"]
    assert asleep["until"] - asleep["since"] == 3600
    wait_until(lambda: "/no/such/python" in place.told("status")["progress"].get("trouble", ""), "the job says so")
    assert "hibernates" in place.run("explain", "1.1.1").stdout
    (place.folder / "sites.yaml").unlink()
    write(place, "broken")
    wait_until((place.folder / "a").exists, "the mended site is tried again")


def test_a_service_that_keeps_probes_under_way_finds_out_what_new_sites_are_worth(place: Place) -> None:
    (place.folder / "pilotage.toml").write_text("[engine]\nprobes = 1\n")
    write(place, "good")
    write(place, "broken", setup=AT_NODE_NO_PYTHON)
    place.run("serve", "--slots", "0", "--port", "0", "--background")

    def probes() -> list[Any]:
        return list(place.told("query", "--events", "type=SiteProbed and position>0")["events"])

    wait_until(lambda: len(probes()) == 2, "both were probed")
    assert {each["site"]: each["data"]["passed"] for each in probes()} == {"good": True, "broken": False}
    listed = {each["site"]: each for each in place.told("site", "list")["sites"]}
    assert (listed["broken"]["status"], listed["good"]["status"]) == ("hibernated", "candidate")
    assert "/no/such/python" in listed["broken"]["closed"]
    assert listed["good"]["score"] > 0.9  # it came at once
