"""What has been imported by the time a first package runs: whatever stands here would make everybody wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pilotage.adapters.sites.zipapp import build
from tests.kit.real_runs import place_in, wait_until

SLOW = {"numpy.ma", "tomllib", "smtplib", "cryptography", "jwt", "http.client", "rich", "pilotage.agent.batch"}
"""What neither the command nor the service needs, here where nobody has settings, mail, sites or TLS."""

BEFORE_THE_SERVICE = SLOW | {
    "numpy",
    "yaml",
    "ssl",
    "asyncio",
    "sqlite3",
    "hashlib",
    "pilotage.language",
    "pilotage.ports",
}
"""What a command imports while it waits for its service, and not before that is on its way."""

OF_AN_AGENT = {"hashlib", "traceback", "ssl", "http.client", "email", "asyncio", "dataclasses", "random"}

DOCUMENT = """\
pilotage: 1
job: cold
stages:
  - shell: cp "$PILOTAGE_FOLDER/.pilotage/service.log" seen.log
    outputs: [seen.log]
"""

LOOK = """\
import sys
from pilotage.app.service import session
def told(*words, **further):
    sys.exit(" ".join(sys.modules))
session.begin_in_background = told
from pilotage.cli import main
main(["run"])
"""


def imported(lines: Iterable[str]) -> set[str]:
    """The modules that Python says it has imported."""
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_the_service_is_on_its_way_before_a_run_imports_what_it_needs_to_read(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT)
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    modules = set(done.stderr.split())
    assert "pilotage.app.service.session" in modules, done.stderr
    assert modules & BEFORE_THE_SERVICE == set()


def test_a_service_answers_and_a_package_runs_without_what_neither_needs(tmp_path: Path) -> None:
    with place_in(tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as place:
        place.document(DOCUMENT)
        place.run("run")
        lines = place.seen("seen.log").read_text().splitlines()
    answers = next(number for number, line in enumerate(lines) if "serving sqlite:" in line)
    before = imported(lines[:answers])
    assert {"numpy.lib", "pilotage.engine.engine"} <= before
    assert before & (SLOW | {"litestar", "yaml", "pilotage.service.http.framework"}) == set()
    # What takes other requests may be on its way by now, on a computer that has much else to do.
    assert imported(lines) & SLOW == set()


def test_a_book_alone_answers_without_what_runs_jobs(tmp_path: Path) -> None:
    with place_in(tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as place:
        place.run("serve", "--book-only", "--port", "0", "--background")
        log = place.state / "service.log"
        wait_until(lambda: "serving sqlite:" in log.read_text(), "the line that says it serves")
        lines = log.read_text().splitlines()
    # Another thread may be in the middle of a line of its own.
    answers = next(number for number, line in enumerate(lines) if "serving sqlite:" in line)
    before = imported(lines[:answers])
    assert "pilotage.service.http.dispatcher" in before
    assert before & (SLOW | {"numpy", "pilotage.language", "pilotage.engine.engine", "litestar"}) == set()


def test_who_waits_for_a_job_is_answered_without_the_application() -> None:
    look = "import sys, pilotage.service.http.agent_exchange, pilotage.service.http.progress; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "pilotage.service.http.backend" in modules
    assert modules & {"litestar", "pilotage.service.http.framework"} == set()


def test_an_agent_flies_before_it_imports_what_a_first_package_may_not_need(tmp_path: Path) -> None:
    agent = build(tmp_path / "agent.pyz")
    look = "import sys; sys.path.insert(0, sys.argv[1]); import pilotage.agent.supervisor; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look, str(agent)], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert "pilotage.agent.pilot.pilot" in modules
    assert modules & OF_AN_AGENT == set()


def test_a_document_is_checked_without_what_writes_yaml_and_what_a_service_is_set_to(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT)
    words = [str(Path(sys.executable).with_name("pilotage")), "check"]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    modules = imported(done.stderr.splitlines())
    assert "pilotage.language.text.yaml" in modules
    assert modules & {"pilotage.language.text.emit", "pilotage.model.settings.settings"} == set()
