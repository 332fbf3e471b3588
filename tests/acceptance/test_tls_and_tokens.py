"""A service that speaks TLS and an agent that comes to it over TCP with the token of its site, from where no path is shared."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.agent.link.connect import ends_at
from pilotage.app.service.credentials import tokens_of
from pilotage.app.state_folder import local_user
from pilotage.client.finding import address_in
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import find_service
from tests.kit.real_runs import PROGRAM, Mounts, Place, own_mounts, place_in, wait_until

LIFE_SECONDS = 12.0  # the agent has come by then, and gets another in the last third
DOCUMENT = """
pilotage: 1
job: far
stages:
  - name: one
    each: {{number: [1, 2]}}
    inputs: [in.txt]
    outputs: ["out-{{number}}.txt"]
    run: {script} {{number}}
"""
SCRIPT = """#!/bin/sh
cp in.txt "out-$1.txt"
cp "$PILOTAGE_TOKEN_FILE" "{site}/shown-$1"
env > "{site}/environment-$1"
{program} tag "number=$1" --now || exit 4
if [ "$1" = 1 ]; then {program} tag number=forged "$PILOTAGE_JOB/1.2.1" --now && exit 5; fi
while [ ! -e "{site}/go" ]; do sleep 0.05; done
"""


@contextmanager
def piloted(place: Place, site: Path, mounts: Mounts, *, ca_file: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that sees nothing of the folder of the service, and ends with the block."""
    served = find_service(place.state)
    assert served is not None
    agent = next(place.state.glob("agent-*.pyz"))
    shutil.copy(agent, site / "agent.pyz")
    mounts.mount("-t", "tmpfs", "tmpfs", str(place.folder.parent))
    words = [sys.executable, "-I", "-S", str(site / "agent.pyz"), "pilot", f"--server={served.url}"]
    words += [f"--ca-file={ca_file}", f"--token-file={site / 'token'}", f"--state={site / 'state'}"]
    words += ["--request=by-hand-1", "--site=local", "--slots=2", "--node=far-away"]
    process = subprocess.Popen(
        [*mounts.prefix, *words], cwd=site, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def commands_and_environments() -> dict[str, bytes]:
    """What anybody, and what this user, can read of the processes here."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            for name in ("cmdline", "environ"):
                try:
                    found[f"{entry.name}/{name}"] = (entry / name).read_bytes()
                except OSError:
                    continue
    return found


def _token_of(site: Path) -> tuple[str, float | None]:
    """The token that the pilot of a site has got for itself, and when it ends; the first ends when that of the site does."""
    token = "".join(file.read_text().strip() for file in (site / "state/spool").glob("*.token"))
    return token, ends_at(token) if token else None


def test_an_agent_elsewhere_brings_results_over_tls_and_no_token_is_seen_anywhere(tmp_path: Path) -> None:
    home, site = tmp_path / "here" / "home", tmp_path / "site"
    home.mkdir(parents=True)
    site.mkdir()
    with own_mounts() as mounts, place_in(home, environment={"PILOTAGE_ENGINE_INTERVAL_SECONDS": "1"}) as place:
        place.run("tls", "init", "--host", "far.example")
        place.run("serve", "--background", "--port", "0", "--slots", "1")
        assert "answers at https://" in place.run("doctor").stdout
        given = tokens_of(place.state, Settings()).for_pilot("local", seconds=LIFE_SECONDS)
        (site / "token").touch(0o600)
        (site / "token").write_text(given)
        shutil.copy(place.state / "tls/ca.pem", site / "ca.pem")
        (home / "in.txt").write_text("hello\n")
        script = site / "work.sh"
        script.write_text(SCRIPT.format(site=site, program=PROGRAM))
        script.chmod(0o755)
        place.document(DOCUMENT.format(script=script))
        with piloted(place, site, mounts, ca_file=site / "ca.pem") as agent:
            wait_until(lambda: _pilots(place), "the agent speaks")
            job = place.told("submit")["job"]
            wait_until(lambda: len(list(site.glob("environment-*"))) == 2, "both packages run")
            # The token ends within seconds, and another one has come by then.
            wait_until(lambda: (_token_of(site)[1] or 0.0) > (ends_at(given) or 0.0), "the token is renewed")
            (own,) = (site / "state/spool").glob("*.token")
            assert stat.S_IMODE(own.stat().st_mode) == 0o600
            renewed, _ = _token_of(site)
            secrets = [given, renewed, (place.state / "token").read_text().strip()]
            secrets += [(site / f"shown-{number}").read_text().strip() for number in (1, 2)]
            assert all(len(secret) > 30 for secret in secrets)
            assert len(set(secrets)) == len(secrets)
            for where, text in commands_and_environments().items():
                assert not any(secret.encode() in text for secret in secrets), where
            (site / "go").touch()
            place.run("attach", job)
            # Nothing of what applications logged stays where they ran.
            wait_until(lambda: not list((site / "state/spool/applications").glob("*")), "all is delivered")
            assert agent.poll() is None
        assert [(home / f"out-{number}.txt").read_text() for number in (1, 2)] == ["hello\n"] * 2
        assert _tags(place, job) == {"1.1.1": "1", "1.2.1": "2"}
        place.close()
        kept = [file for file in place.state.rglob("*") if file.is_file() and file.name != "token"]
        assert {"book.sqlite", "service.log", "work.sqlite"} <= {file.name for file in kept}
        for file in kept:
            content = file.read_bytes()
            assert not any(secret.encode() in content for secret in secrets), file


def test_an_agent_that_knows_another_authority_says_so_and_tells_the_service_nothing(tmp_path: Path) -> None:
    home, site = tmp_path / "here" / "home", tmp_path / "site"
    home.mkdir(parents=True)
    site.mkdir()
    with own_mounts() as mounts, place_in(home) as place:
        place.run("tls", "init")
        shutil.copy(place.state / "tls/ca.pem", site / "old.pem")
        place.run("tls", "init", "--new-ca")
        place.run("serve", "--background", "--port", "0")
        (site / "token").write_text(tokens_of(place.state, Settings()).for_pilot("local"))
        with piloted(place, site, mounts, ca_file=site / "old.pem") as agent:
            assert agent.stderr is not None
            said = agent.stderr.readline()
            assert "not from the authority in" in said, said
            assert not _pilots(place)


def _pilots(place: Place) -> list[str]:
    address = address_in(place.state)
    assert address is not None
    with address.server() as server:
        found = server.get("/v1/pilots")["pilots"]
    return [each["pilot"] for each in found if each["pilot"].startswith("by-hand")]


def _tags(place: Place, job: str) -> dict[str, str]:
    found = place.told("query", f"job={job}")["packages"]
    return {each["id"]: each["tags"]["number"] for each in found}


def test_whose_service_it_is_stands_in_the_tokens(tmp_path: Path) -> None:
    found = tokens_of(tmp_path, Settings()).principal(tokens_of(tmp_path, Settings()).for_pilot("x"))
    assert found is not None
    assert found.user == local_user()
