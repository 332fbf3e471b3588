"""A real service, and an agent that asks for what is not its own: other sites' files, logs, and numbers out of all bounds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pilotage.app.service.credentials import tokens_of
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry
from tests.kit.site_service import SiteService, service_in

JOB = """\
pilotage: 1
job: far
stages:
  - shell: cat given.txt > out.txt
    inputs: [given.txt]
    outputs: [out.txt]
"""


def site_token(service: SiteService, site: str) -> str:
    return tokens_of(service.state, Settings()).for_pilot(site)


def own_token(service: SiteService, pilot: str, site: str) -> str:
    """The token that a pilot is given when it first speaks."""
    told = asked(service, "/agent/exchange", site_token(service, site), exchange_of(pilot, site))
    assert told[0] == 200, told
    assert "assignments" not in json.loads(told[1])["reply"]
    return str(told[2]["Pilotage-Token"])


def asked(service: SiteService, path: str, token: str, said: Any = None, *, method: str = "") -> tuple[int, Any, Any]:
    """Ask with a token; the status, the answer, and its headers."""
    body = said if said is None or isinstance(said, bytes) else json.dumps(said).encode()
    request = urllib.request.Request(
        service.url + path, body, {"Authorization": f"Bearer {token}"}, method=method or None
    )
    try:
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read(), refused.headers


def exchange_of(pilot: str, site: str, *, sequence: int = 1, **more: Any) -> Any:
    """An exchange of a pilot, which introduces itself."""
    data = {"site": site, "node": "n", "slots": 1, "request": pilot.partition(".")[0]}
    started = {"source": "agent", "stream": pilot, "n": 1, "type": "PilotStarted", "time": 1.0, "pilot": pilot}
    logs = more.pop("logs", [])
    events = [{**started, "data": data}, *more.pop("events", [])]
    return {"exchange": {"pilot": pilot, "site": site, "sequence": sequence, "events": events, **more}, "logs": logs}


def ask(service: SiteService, path: str, token: str, said: Any = None) -> tuple[int, Any]:
    return asked(service, path, token, said)[:2]


def speak(service: SiteService, pilot: str, site: str, token: str, **more: Any) -> tuple[int, Any]:
    """One exchange of a pilot with some token."""
    return ask(service, "/agent/exchange", token, exchange_of(pilot, site, **more))


def log_of(ref: dict[str, Any], head: str, **more: Any) -> dict[str, Any]:
    return {"ref": ref, "stream": "stdout", "head": head, **more}


def test_a_site_has_the_files_and_brings_the_logs_of_what_it_runs_and_of_nothing_else(tmp_path: Path) -> None:
    entries = [SiteEntry(name=name, kind="slurm", started_by="agent") for name in ("lyon", "paris")]
    with service_in(tmp_path, entries) as service:
        (tmp_path / "given.txt").write_text("given")
        (tmp_path / "paris.token").write_text("secret")
        (tmp_path / "pilotage.yaml").write_text(JOB)
        service.program("submit")
        lyon, paris = own_token(service, "p-1.1", "lyon"), own_token(service, "nobody.2", "paris")
        status, body = speak(service, "p-1.1", "lyon", lyon)
        assert status == 200
        ref = json.loads(body)["reply"]["assignments"][0]["ref"]
        files = f"/agent/files/{ref['job']}?name="
        assert ask(service, files + "given.txt", lyon) == (200, b"given")
        for name in ("paris.token", "pilotage.yaml", "out.txt"):
            assert ask(service, files + name, lyon)[0] == 403, name
        for other in (paris, site_token(service, "lyon")):
            assert ask(service, files + "given.txt", other)[0] == 403

        own = [log_of({**ref, "package": "x"}, "nowhere"), log_of(ref, "its own words")]
        assert speak(service, "p-1.1", "lyon", lyon, sequence=2, held=[ref], leaving="soon", logs=own)[0] == 200
        for number, strange in enumerate((log_of(ref, "forged"), log_of({**ref, "attempt": 9}, "forged"))):
            name = f"nobody-{number}.1"
            token = own_token(service, name, "paris")
            assert speak(service, name, "paris", token, leaving="now", logs=[strange])[0] == 200
        for wild in (log_of({**ref, "attempt": 2**63}, "x"), log_of(ref, "x", dropped_bytes=2**70)):
            assert speak(service, "nobody.2", "paris", paris, leaving="now", logs=[wild])[0] == 400
        with urllib.request.urlopen(service.url + "/healthz", timeout=30.0) as answer:
            assert answer.status == 200

        service.stop(kill=True)
        service.start()
        assert ask(service, files + "given.txt", lyon) == (200, b"given")
        assert ask(service, files + "paris.token", lyon)[0] == 403
        told = service.program("logs", ref["package"])
        assert "its own words" in told
        assert "forged" not in told


def test_no_pilot_takes_over_what_another_of_its_site_runs(tmp_path: Path) -> None:
    """Neither with the token that all of them have nor with its own, before and after the service was killed."""
    with service_in(tmp_path, [SiteEntry(name="lyon", kind="slurm", started_by="agent")]) as service:
        (tmp_path / "given.txt").write_text("given")
        (tmp_path / "pilotage.yaml").write_text(JOB)
        service.program("submit")
        lyon, rogue = own_token(service, "p-1.1", "lyon"), own_token(service, "p-2.1", "lyon")
        ref = json.loads(speak(service, "p-1.1", "lyon", lyon)[1])["reply"]["assignments"][0]["ref"]
        done = {"source": "agent", "stream": "p-1.1", "n": 2, "type": "AttemptFinished", "time": 2.0, **ref}
        done["data"] = {"exit_code": "SUCCESS", "manifest": {"outputs": [{"name": "out.txt", "size_bytes": 6}]}}
        staged = f"/agent/staged/{ref['job']}/{ref['package']}/{ref['attempt']}/0"

        def attacked() -> None:
            for token, status in ((rogue, 404), (site_token(service, "lyon"), 403)):
                assert speak(service, "p-1.1", "lyon", token, sequence=9, events=[done])[0] == 403
                assert asked(service, staged, token, b"forged", method="PUT")[0] == status
            # Under its own name it may speak, and is not believed.
            assert speak(service, "p-2.1", "lyon", rogue, sequence=9, events=[{**done, "stream": "p-2.1"}])[0] == 200

        attacked()
        service.stop(kill=True)
        service.start()
        attacked()
        far = {**done, "n": 2**53 - 1, "type": "Noted", "data": {"text": "x"}}
        status, body = speak(service, "p-2.1", "lyon", rogue, sequence=10, events=[{**far, "stream": "p-2.1"}])
        assert (status, "far beyond" in json.loads(body)["reply"]["leave"]) == (200, True)
        told = service.program("status", "--json", ref["package"])
        assert '"p-1.1"' in told
        assert "SUCCESS" not in told
        assert not (tmp_path / "out.txt").exists()
        # The one that has it goes on as if nothing had been.
        assert speak(service, "p-1.1", "lyon", lyon, sequence=2, held=[ref])[0] == 200
        assert asked(service, staged, lyon, b"given\n", method="PUT")[0] == 204
