"""A pilot whose own token ends while the service is away: what it cannot bring any more is told by its reason, and it goes on."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pilotage.agent.link.connect import ends_at
from pilotage.app.service.credentials import tokens_of
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import find_service
from tests.engines.postgres import free_port
from tests.kit.real_runs import Place, own_mounts, place_in, wait_until

LIFE_SECONDS = 6.0
LASTING_SECONDS = 3600.0
# The clocks of two computers may be a minute apart; these two are one.
SERVE = """\
from pilotage.app.state_folder import settings_here
from pilotage.app.service.serve import serve_jobs
from pilotage.service import tokens

tokens.LEEWAY_SECONDS = 0.0
serve_jobs(settings_here(), started=lambda _: None, slots=1)
"""
# A pilot speaks every second, so that its token is renewed; one that is refused waits for ten, and is not given up for that.
PATIENT = {"PILOTAGE_ENGINE_INTERVAL_SECONDS": "1", "PILOTAGE_ENGINE_LEASE_INTERVALS": "60"}
DOCUMENT = """\
pilotage: 1
job: far
stages:
  - outputs: [out.txt]
    shell: |
      echo hello > out.txt
      echo begun >> {site}/begun
      while ! test -e {site}/go; do sleep 0.05; done
"""


@contextmanager
def served(place: Place) -> Iterator[None]:
    """A service while the block runs; then it is killed."""
    with (place.folder / "service.out").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            cwd=place.folder,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(lambda: find_service(place.state) is not None or process.poll() is not None, "the service answers")
        assert process.poll() is None, (place.folder / "service.out").read_text()
        yield
    finally:
        process.kill()
        process.wait(30)


def reasons(place: Place) -> list[str]:
    """Why attempts ended, as told by whoever ran them; empty for one that succeeded."""
    asked = "SELECT data FROM events WHERE type = 'AttemptFinished' ORDER BY position"
    with closing(sqlite3.connect(f"file:{place.state}/book.sqlite?mode=ro", uri=True)) as book:
        return [json.loads(data).get("reason", "") for (data,) in book.execute(asked)]


def give_token(place: Place, site: Path, *, seconds: float) -> None:
    """Put a token for the pilots of a site where they read it, as a service does again and again."""
    draft = site / "token.new"
    draft.touch(0o600)
    draft.write_text(tokens_of(place.state, Settings()).for_pilot("local", seconds=seconds))
    draft.replace(site / "token")


def own_token(site: Path) -> str:
    """The token that the pilot was given for itself."""
    return "".join(file.read_text().strip() for file in (site / "state/spool").glob("*.token"))


def spooled(site: Path) -> str:
    """What the pilot has written down to tell the service."""
    return "".join(file.read_text() for file in (site / "state/spool").iterdir() if file.is_file())


def test_what_a_pilot_cannot_bring_because_its_token_has_ended_is_told_so_and_it_is_heard_again(tmp_path: Path) -> None:
    home, site = tmp_path / "here" / "home", tmp_path / "site"
    home.mkdir(parents=True)
    site.mkdir()
    with own_mounts() as mounts, place_in(home, environment=PATIENT) as place:
        place.environment["PILOTAGE_SERVICE_PORT"] = str(free_port())
        place.document(DOCUMENT.format(site=site))
        with served(place):
            give_token(place, site, seconds=LIFE_SECONDS)
            found = find_service(place.state)
            assert found is not None
            shutil.copy(next(place.state.glob("agent-*.pyz")), site / "agent.pyz")
            mounts.mount("-t", "tmpfs", "tmpfs", str(home.parent))  # it sees nothing of the folder of the service
            words = [sys.executable, "-I", "-S", str(site / "agent.pyz"), "pilot", f"--server={found.url}"]
            words += [f"--token-file={site / 'token'}", f"--state={site / 'state'}", "--request=by-hand-1"]
            words += ["--site=local", "--slots=1", "--cores-hundredths=100", "--node=far-away"]
            with (site / "pilot.log").open("wb") as log:
                pilot = subprocess.Popen([*mounts.prefix, *words], cwd=site, stdout=log, stderr=log)
            wait_until(lambda: own_token(site), "the pilot is known")
            first = own_token(site)
            job = place.told("submit")["job"]
            wait_until((site / "begun").exists, "the package runs")
            wait_until(lambda: own_token(site) != first, "its token is renewed while it speaks")
        try:
            wait_until(lambda: (ends_at(own_token(site)) or 0.0) < time.time(), "its token has ended")
            (site / "go").touch()
            with served(place):
                # Before the pilot has a token it can only ask, and is refused; with one, it would bring the output after all.
                wait_until(lambda: "credential-expired" in spooled(site), "the attempt has ended for want of a token")
                give_token(place, site, seconds=LASTING_SECONDS)
                wait_until(lambda: "credential-expired" in reasons(place), "the end of the attempt is told")
                wait_until(lambda: (ends_at(own_token(site)) or 0.0) > time.time(), "it has another token")
                assert pilot.poll() is None
                explained = place.run("explain", f"{job}/1.1.1").stdout
                assert "credential-expired" in explained, explained
                pilot.terminate()
                pilot.wait(60)
        finally:
            pilot.kill()
            pilot.wait(60)
