"""A running service follows its file of sites, and does what an operator asks of one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.service.announcement import find_service
from tests.kit.process_batch import ProcessBatch, give_dialect
from tests.kit.real_runs import Place, place_in, wait_until

ANNEX = "  - {name: annex, kind: local, slots: 2, idle: 60}\n"
CELLAR = "  - {name: cellar, kind: local, slots: 1, idle: 60}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as found:
        write(found, ANNEX)
        found.run("serve", "--slots", "0", "--port", "0", "--background")
        yield found


def write(place: Place, *sites: str) -> None:
    (place.folder / "sites.yaml").write_text("".join(["pilotage: 1\nsites:\n", *sites]))


def sites(place: Place) -> dict[str, Any]:
    return {each["site"]: each for each in place.told("site", "list")["sites"]}


def job_at(place: Place, name: str) -> None:
    place.document(
        f"pilotage: 1\njob: at-{name}\nstages:\n  - {{shell: echo > {name}, outputs: [{name}], executor: {name}}}\n"
    )
    place.run("run", "--detach")


def made(place: Place, name: str) -> None:
    wait_until((place.folder / name).exists, f"{name} is made")


def test_sites_that_are_written_down_while_it_runs_are_used_and_those_that_are_removed_are_left(place: Place) -> None:
    assert [*sites(place)] == ["annex"]
    write(place, ANNEX, CELLAR)
    wait_until(lambda: "cellar" in sites(place), "the new site is known")
    job_at(place, "cellar")
    made(place, "cellar")
    job_at(place, "annex")
    made(place, "annex")
    assert sites(place)["annex"]["pilots_live"] == 1
    place.run("site", "remove", "annex")
    wait_until(lambda: "annex" not in sites(place), "the pilots of a site that is gone leave")
    assert sites(place)["cellar"]["status"] == "candidate"


def test_what_runs_at_a_site_whose_entry_is_gone_when_the_service_comes_back_goes_on_and_is_committed_once(
    place: Place,
) -> None:
    write(place, ANNEX, CELLAR)
    wait_until(lambda: "cellar" in sites(place), "the new site is known")
    os.mkfifo(place.folder / "started")
    os.mkfifo(place.folder / "go")
    place.document(
        "pilotage: 1\njob: goes-on\nstages:\n  - outputs: [made]\n    executor: annex\n"
        "    shell: 'echo x > $PILOTAGE_FOLDER/started; cat $PILOTAGE_FOLDER/go > made'\n"
    )
    job = place.told("run", "--detach")["job"]
    assert (place.folder / "started").read_text() == "x\n"
    service = find_service(place.state)
    assert service is not None
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: find_service(place.state) is None, "the end of the service")
    write(place, CELLAR)
    place.run("serve", "--slots", "0", "--port", "0", "--background")
    wait_until(lambda: sites(place)["cellar"]["status"] == "candidate", "the other site has answered")
    assert sites(place)["annex"]["status"] == "leaving"
    (place.folder / "go").write_text("once\n")
    made(place, "made")
    assert (place.folder / "made").read_text() == "once\n"
    wait_until(lambda: "annex" not in sites(place), "the pilot of a site that is gone leaves")
    told = [each["type"] for each in place.told("events", job)["events"]]
    assert [told.count(each) for each in ("AttemptCreated", "CommitGranted", "AttemptLost")] == [1, 1, 0]
    shown = place.told("site", "show", "annex")
    assert shown["site"]["status"] == "gone"
    assert [each for each in shown["pilots"] if each["ended_at"] is None] == []


def test_a_faulty_file_keeps_the_sites_and_is_told_in_the_list_and_in_the_log(place: Place) -> None:
    write(place, ANNEX, "  - {name: cellar, kidn: local}\n")
    wait_until(lambda: "kidn" in place.told("site", "list")["fault"], "the fault is told")
    assert [*sites(place)] == ["annex"]
    wait_until(lambda: "kidn" in place.log(), "the fault is in the log")
    write(place, ANNEX)
    wait_until(lambda: not place.told("site", "list")["fault"], "the fault is mended")


def test_a_site_that_hibernates_is_given_nothing_until_it_is_woken(place: Place) -> None:
    place.run("site", "hibernate", "annex", "--message", "new disks")
    assert (sites(place)["annex"]["status"], "new disks" in sites(place)["annex"]["closed"]) == ("hibernated", True)
    job_at(place, "annex")
    wait_until(lambda: "new disks" in place.told("status")["progress"].get("trouble", ""), "who waits for it is told")
    assert not (place.folder / "annex").exists()
    assert any(not each.get("passes", True) for each in place.told("site", "explain", "annex")["reasons"])
    place.run("site", "wake", "annex")
    made(place, "annex")


def test_a_probe_tells_whether_a_pilot_comes_up(place: Place) -> None:
    (told,) = place.told("site", "probe", "--all")["probes"]
    assert (told["site"], told["ok"]) == ("annex", True)
    assert place.told("site", "probe", "nowhere", code=2)["refused"][0]["code"] == "unknown_site"


def test_a_site_of_another_file_is_tested_where_no_service_runs(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with place_in(tmp_path / "work") as alone:
        (tmp_path / "other.yaml").write_text(f"pilotage: 1\nsites:\n{CELLAR}")
        told = alone.told("site", "test", "cellar", "--sites", "../other.yaml", "--timeout", "60")
        assert (told["ok"], told["failed"]) == (True, None)
        assert Path(alone.told("site", "list")["file"]).samefile(tmp_path / "other.yaml")
        alone.run("serve", "--stop")
        write(alone, ANNEX)
        alone.run("serve", "--slots", "0", "--port", "0", "--background")
        told = alone.told("site", "test", "cellar", "--sites", "../other.yaml", "--timeout", "60", code=1)
        assert (told["failed"], str(alone.folder / "sites.yaml") in told["hops"][-1]["message"]) == ("service", True)


def test_a_site_that_cannot_be_is_told_and_those_beside_it_stay(place: Place) -> None:
    write(place, ANNEX, "  - {name: bad, kind: slurm, folder: ~bob/x}\n", CELLAR)
    wait_until(lambda: "~bob" in place.told("site", "list")["fault"], "the fault is told")
    assert [*sites(place)] == ["annex"]
    place.run("serve", "--stop")
    assert "~bob" in place.run("serve", "--slots", "0", "--port", "0", code=2).stderr
    place.document("pilotage: 1\njob: x\nstages:\n  - {shell: echo > x, outputs: [x]}\n")
    before = place.log().count("bad-path")
    assert "~bob" in place.run("run", code=2).stderr
    assert place.log().count("bad-path") == before + 1  # it was not started a second time to be asked
    write(place, ANNEX, CELLAR)
    place.run("serve", "--slots", "0", "--port", "0", "--background")
    assert [*sites(place)] == ["annex", "cellar"]


def test_a_site_that_was_silent_is_used_when_its_entry_is_mended(tmp_path: Path) -> None:
    batch, work = ProcessBatch(tmp_path / "batch"), tmp_path / "work"
    work.mkdir()
    give_dialect(work)
    lyon = f"  - {{name: lyon, kind: procbatch, folder: {tmp_path / 'shared'}, python: {sys.executable}, idle: 2"
    with place_in(work, environment=batch.environment()) as place:
        write(place, f"{lyon}, address: 'ssh://nobody@127.0.0.1:9'}}\n")
        place.run("serve", "--slots", "0", "--port", "0", "--background")
        wait_until(lambda: sites(place)["lyon"]["status"] == "silent", "nobody answers there")
        assert "refused" in sites(place)["lyon"]["says"]
        write(place, f"{lyon}}}\n")
        wait_until(lambda: sites(place)["lyon"]["status"] == "candidate", "it answers")
        assert sites(place)["lyon"]["says"] == ""
        job_at(place, "lyon")
        made(place, "lyon")
    batch.end()
