"""Packages on a node without a route: what they log of themselves comes to the book by the way of their pilot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.agent.site.relay import Relays
from pilotage.app.service.credentials import tokens_of
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import find_service
from tests.kit.agent_forwarder import forwarder
from tests.kit.real_runs import PROGRAM, Place, place_in, wait_until

DOCUMENT = """
pilotage: 1
job: telling
stages:
  - name: one
    each: {{number: [1, 2]}}
    run: {script} {{number}}
"""


@contextmanager
def site_of(tmp_path: Path, script_text: str) -> Iterator[tuple[Place, Path, str]]:
    """A service with a document, a folder of a site with what a pilot needs, and the address of the service."""
    home, site = tmp_path / "home", tmp_path / "site"
    home.mkdir()
    site.mkdir()
    with place_in(home, environment={"PILOTAGE_ENGINE_INTERVAL_SECONDS": "1"}) as place:
        script = site / "work.sh"
        script.write_text(script_text.format(program=PROGRAM, site=site))
        script.chmod(0o755)
        place.document(DOCUMENT.format(script=script))
        place.run("serve", "--background", "--port", "0", "--slots", "1")
        (site / "token").touch(0o600)
        (site / "token").write_text(tokens_of(place.state, Settings()).for_pilot("local"))
        shutil.copy(next(place.state.glob("agent-*.pyz")), site / "agent.pyz")
        served = find_service(place.state)
        assert served is not None
        yield place, site, served.url


@contextmanager
def piloted(site: Path, address: str) -> Iterator[None]:
    """An agent that knows its service by one address, and ends with the block."""
    words = [sys.executable, "-I", "-S", str(site / "agent.pyz"), "pilot", f"--server={address}"]
    words += [f"--token-file={site / 'token'}", f"--state={site / 'state'}", "--request=by-hand-1", "--site=local"]
    process = subprocess.Popen([*words, "--slots=2", "--node=far-away"], cwd=site, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: list((site / "state").glob("spool/*.events")), "the agent speaks")
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tags(place: Place, job: str) -> dict[str, str]:
    """What each package is tagged with."""
    found = place.told("query", f"job={job}")["packages"]
    return {each["id"]: each["tags"].get("number", "") for each in found}


def test_a_package_tags_itself_where_only_what_is_for_agents_passes(tmp_path: Path) -> None:
    tagging = '#!/bin/sh\nexec {program} tag "number=$1" --now\n'
    with site_of(tmp_path, tagging) as (place, site, url), forwarder(url) as way:
        with piloted(site, way.url):
            job = place.told("submit")["job"]
            place.run("attach", job)
        assert tags(place, job) == {"1.1.1": "1", "1.2.1": "2"}
        assert "/agent/events" in way.passed
        assert "/v1/events" not in way.refused


def test_what_packages_could_not_deliver_is_delivered_by_their_pilot_the_same_way(tmp_path: Path) -> None:
    tagging = '#!/bin/sh\nexec {program} tag "number=$1" --no-deliver\n'
    with site_of(tmp_path, tagging) as (place, site, url), forwarder(url) as way:
        with piloted(site, way.url):
            job = place.told("submit")["job"]
            place.run("attach", job)
            wait_until(lambda: tags(place, job) == {"1.1.1": "1", "1.2.1": "2"}, "the tags are there")
            wait_until(lambda: not list((site / "state/spool/applications").glob("*")), "nothing is left")
        assert "/v1/events" not in way.refused


def test_a_pilot_that_shares_only_a_folder_with_a_relay_delivers_for_its_packages_while_they_run(
    tmp_path: Path,
) -> None:
    tagging = '#!/bin/sh\n{program} tag "number=$1" || exit 3\nwhile [ ! -e {site}/go ]; do sleep 0.05; done\n'
    with site_of(tmp_path, tagging) as (place, site, url):
        relaying = Relays(url)
        relaying.start(folder=site / "relay")
        try:
            with piloted(site, f"spool:{site / 'relay'}"):
                job = place.told("submit")["job"]
                wait_until(lambda: tags(place, job) == {"1.1.1": "1", "1.2.1": "2"}, "the tags are there")
                (site / "go").touch()
                place.run("attach", job)
                wait_until(lambda: not list((site / "state/spool/applications").glob("*")), "nothing is left")
        finally:
            relaying.stop()
