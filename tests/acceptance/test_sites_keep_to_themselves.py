"""A real service, and an agent that asks for what is not its own: other sites' files, logs, and numbers out of all bounds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pilotage.app.tokens import tokens_of
from pilotage.model.configuration import Settings
from pilotage.model.site_entry import SiteEntry
from tests.site_service import SiteService, service_in

JOB = """\
pilotage: 1
job: far
stages:
  - shell: cat given.txt > out.txt
    inputs: [given.txt]
    outputs: [out.txt]
"""


def ask(service: SiteService, path: str, site: str, said: Any = None) -> tuple[int, Any]:
    """Ask as an agent of a site does; the status and the answer."""
    token = tokens_of(service.state, Settings()).for_pilot(site)
    body = None if said is None else json.dumps(said).encode()
    request = urllib.request.Request(service.url + path, body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def speak(service: SiteService, pilot: str, site: str, *, sequence: int = 1, **more: Any) -> tuple[int, Any]:
    """One exchange of a pilot, which introduces itself."""
    data = {"site": site, "node": "n", "slots": 1, "request": pilot.partition(".")[0]}
    started = {"source": "agent", "stream": pilot, "n": 1, "type": "PilotStarted", "time": 1.0, "pilot": pilot}
    logs = more.pop("logs", [])
    exchange = {"pilot": pilot, "site": site, "sequence": sequence, "events": [{**started, "data": data}], **more}
    return ask(service, "/agent/exchange", site, {"exchange": exchange, "logs": logs})


def log_of(ref: dict[str, Any], head: str, **more: Any) -> dict[str, Any]:
    return {"ref": ref, "stream": "stdout", "head": head, **more}


def test_a_site_has_the_files_and_brings_the_logs_of_what_it_runs_and_of_nothing_else(tmp_path: Path) -> None:
    entries = [SiteEntry(name=name, kind="slurm", started_by="agent") for name in ("lyon", "paris")]
    with service_in(tmp_path, entries) as service:
        (tmp_path / "given.txt").write_text("given")
        (tmp_path / "paris.token").write_text("secret")
        (tmp_path / "pilotage.yaml").write_text(JOB)
        service.program("submit")
        status, body = speak(service, "p-1.1", "lyon")
        assert status == 200
        ref = json.loads(body)["reply"]["assignments"][0]["ref"]
        files = f"/agent/files/{ref['job']}?name="
        assert ask(service, files + "given.txt", "lyon") == (200, b"given")
        for name in ("paris.token", "pilotage.yaml", "out.txt"):
            assert ask(service, files + name, "lyon")[0] == 403, name
        assert ask(service, files + "given.txt", "paris")[0] == 403

        own = [log_of({**ref, "package": "x"}, "nowhere"), log_of(ref, "its own words")]
        assert speak(service, "p-1.1", "lyon", sequence=2, held=[ref], leaving="soon", logs=own)[0] == 200
        for number, strange in enumerate((log_of(ref, "forged"), log_of({**ref, "attempt": 9}, "forged"))):
            assert speak(service, f"nobody-{number}.1", "paris", leaving="now", logs=[strange])[0] == 200
        for wild in (log_of({**ref, "attempt": 2**63}, "x"), log_of(ref, "x", dropped_bytes=2**70)):
            assert speak(service, "nobody.2", "paris", leaving="now", logs=[wild])[0] == 400
        with urllib.request.urlopen(service.url + "/healthz", timeout=30.0) as answer:
            assert answer.status == 200

        service.stop(kill=True)
        service.start()
        assert ask(service, files + "given.txt", "lyon") == (200, b"given")
        assert ask(service, files + "paris.token", "lyon")[0] == 403
        told = service.program("logs", ref["package"])
        assert "its own words" in told
        assert "forged" not in told
