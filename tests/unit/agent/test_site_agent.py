"""The agent of a site as a whole, between a service that it asks over a real socket and the commands of a batch system."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.agent import silent_pilots
from pilotage.agent.batch import Answer, Call
from pilotage.agent.link.connect import Credentials, connect
from pilotage.agent.link.download import Downloads
from pilotage.agent.site import agent as site_agent
from pilotage.agent.site.agent import SiteAgent, SiteAgentSettings, run_here
from pilotage.agent.site.state_folder import SiteFolder, SiteRecords

SITE = "lyon"
SERVICE = {"service": "first", "prefix": "p", "number": 1, "interval_seconds": 60.0, "effects": [], "expected": []}


class Service:
    """Answers exchanges by what it was told beforehand; after the last of it the agent is to leave."""

    def __init__(self, *answers: dict[str, Any], files: dict[str, bytes] | None = None) -> None:
        self.answers = list(answers)
        self.files = files or {}
        self.heard: list[dict[str, Any]] = []
        self.leave: Callable[[str], None] = lambda _: None

    def hear(self, says: dict[str, Any]) -> dict[str, Any]:
        self.heard.append(says)
        answer = self.answers.pop(0)
        if not self.answers:
            self.leave("all was said")
        return {**SERVICE, "agent": says["agent"], "sequence": says["sequence"], **answer}

    def reports(self, kind: str) -> list[list[dict[str, Any]]]:
        """The reports of a kind in each exchange."""
        return [[each for each in says["reports"] if each["report"] == kind] for says in self.heard]


@contextmanager
def listening(service: Service) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            says = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(service.hear(says)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            content = service.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def work(folder: Path, service: Service, run: Callable[[Call], Answer], *, scheduler: str) -> str:
    """Have an agent work until the service has said everything; why it left."""
    place = SiteFolder(folder, site=SITE, version="0")
    place.make()
    with listening(service) as address:
        place.server = address
        credentials = Credentials("")
        agent = SiteAgent(
            SiteAgentSettings(SITE, scheduler=scheduler),
            place,
            SiteRecords(folder / "memory.json"),
            connect=lambda: connect(address, token=credentials),
            credentials=credentials,
            open_transfer=Downloads(address, token=credentials).open,
            run=run,
        )
        service.leave = agent.ask_to_leave
        return agent.run()


def wants(*keys: str, **entry: Any) -> dict[str, Any]:
    effects = [{"type": "submit-pilot", "site": SITE, "key": key} for key in keys]
    return {"effects": effects, "entry": {"name": SITE, **entry}}


def test_an_entry_that_cannot_be_said_to_the_batch_system_is_a_submission_that_failed_and_ends_no_agent(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def condor(call: Call) -> Answer:
        asked.append(call.argv[0])
        return Answer(0, "[]")

    service = Service(wants("lyon-1", kind="htcondor", queue="long"), {}, {})
    assert work(tmp_path, service, condor, scheduler="htcondor") == "all was said"
    first, second, *_ = service.reports("submission-failed")
    assert first == []
    assert [(each["key"], each["reason"]) for each in second] == [("lyon-1", "bad-resources")]
    assert "HTCondor has no queues" in second[0]["message"]
    assert "condor_submit" not in asked


def test_a_batch_system_where_nothing_is_wanted_is_asked_once_a_minute_and_at_once_when_something_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked_at = [100.0], []

    def slurm(call: Call) -> Answer:
        if call.argv[0] == "squeue":
            asked_at.append(now[0] - 100.0)
        return Answer(0, "")

    class Slow(Service):
        def hear(self, says: dict[str, Any]) -> dict[str, Any]:
            now[0] += 10.0
            return super().hear(says)

    monkeypatch.setattr(site_agent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rest = {**wants(kind="slurm"), "interval_seconds": 10.0}
    service = Slow(*[rest] * 13, {**rest, "expected": ["lyon-1"]}, *[rest] * 2)
    work(tmp_path, service, slurm, scheduler="slurm")
    assert asked_at[:4] == [10.0, 70.0, 130.0, 140.0]


def test_a_service_that_begins_anew_is_told_that_the_batch_system_is_down(tmp_path: Path) -> None:
    def dead(call: Call) -> Answer:
        return Answer(None, "", "no answer")

    service = Service(wants(kind="slurm"), {}, {}, {"service": "second"}, {"service": "second"}, {"service": "second"})
    work(tmp_path, service, dead, scheduler="slurm")
    assert [[each["answers"] for each in told] for told in service.reports("seen")] == [
        [],
        [False],
        [],
        [],
        [False],
        [],
    ]


VERSION = ("sbatch", "--version")


def slurm(*keys: str, asked: list[str]) -> Callable[[Call], Answer]:
    """A Slurm in which these wait, and that takes nothing more: whether it does is not known."""

    def run(call: Call) -> Answer:
        if call.argv == VERSION:
            return Answer(0, "slurm 22.05.8\n")
        asked.append(call.argv[0])
        return Answer(None) if call.argv[0] == "sbatch" else Answer(0, "\n".join(shown(call, key) for key in keys))

    return run


def shown(call: Call, key: str, *, state: str = "PENDING", why: str = "None") -> str:
    """A job, in the columns that squeue is asked for."""
    columns = [column.split(":") for column in call.argv[-1].partition("=")[2].split(",")]
    told = {"JobID": "41", "ArrayJobID": "41", "State": state, "Reason": why, "Name": f"p.{key}"}
    return "".join(told.get(column, "").ljust(int(width)) for column, width in columns)


def test_what_is_there_and_the_service_does_not_speak_of_is_told_to_it(tmp_path: Path) -> None:
    service = Service(wants(kind="slurm"), *({"expected": ["lyon-2"]} for _ in range(4)))
    work(tmp_path, service, slurm("lyon-1", "lyon-2", asked=[]), scheduler="slurm")
    assert [says["there"] for says in service.heard] == [[], [], ["lyon-1"], ["lyon-1"], ["lyon-1"]]


def test_the_batch_system_is_not_asked_at_each_exchange_while_it_is_not_known_whether_something_was_queued(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    service = Service(*(wants("lyon-1", kind="slurm") for _ in range(40)))
    work(tmp_path, service, slurm(asked=asked), scheduler="slurm")
    assert asked.count("sbatch") == 1
    assert asked.count("squeue") < 20


def test_what_is_held_and_what_runs_without_a_word_is_told_once_to_each_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_pilots, "SILENT_SECONDS", 0.0)

    def run(call: Call) -> Answer:
        if call.argv == VERSION:
            return Answer(0, "slurm 22.05.8\n")
        if call.argv == ("sh",):
            mark = call.stdin.partition("echo ")[2].split()[0]
            return Answer(0, f"no answer from the service\n{mark}\n")
        rows = [shown(call, "lyon-1", state="RUNNING"), shown(call, "lyon-2", why="PartitionTimeLimit")]
        return Answer(0, "\n".join(rows))

    keys = ["lyon-1", "lyon-2"]
    first = {"expected": keys, "unheard": keys, **wants(kind="slurm"), "interval_seconds": 0.0}
    second = {**first, "service": "second"}
    spoken = {**second, "unheard": []}
    service = Service(first, first, first, second, second, spoken, spoken, spoken)
    work(tmp_path, service, run, scheduler="slurm")
    told = [
        {"key": "lyon-2", "state": "held", "words": "PartitionTimeLimit"},
        {"key": "lyon-1", "state": "running", "words": "no answer from the service"},
    ]
    noticed = [[each["things"] for each in reports] for reports in service.reports("noticed")]
    assert noticed == [[], [told], [], [], [told], [], [[]], []]


# --- which batch system it drives --------------------------------------------------------------------------------------


class Both:
    """A login node at which Slurm and Grid Engine answer, each with a queue of its own; it notes what is called."""

    def __init__(self, *absent: str) -> None:
        self.absent = absent
        self.slurm: list[str] = []
        self.gridengine: list[str] = []
        self.called: list[tuple[str, ...]] = []

    def run(self, call: Call) -> Answer:
        self.called.append(call.argv)
        word = call.argv[0]
        if word in self.absent:
            return Answer(127, "", f"{word}: not found")
        match call.argv[:2]:
            case ("sbatch", "--version"):
                return Answer(0, "slurm 22.05.8\n")
            case ("qstat", "-help"):
                return Answer(0, "SGE 8.1.9\n")
            case ("sbatch", _):
                self.slurm.append(call.argv[2].partition("p.")[2])
                return Answer(0, "41\n")
            case ("qsub", _):
                self.gridengine.append(call.argv[3].partition("p.")[2])
                return Answer(0, "7\n")
            case ("squeue", _):
                return Answer(0, "\n".join(shown(call, key) for key in self.slurm))
            case ("qstat", _):
                jobs = "".join(
                    f"<job_list><JB_job_number>7</JB_job_number><JB_name>p.{key}</JB_name><state>qw</state></job_list>"
                    for key in self.gridengine
                )
                return Answer(0, f"<job_info>{jobs}</job_info>")
        if call.argv == ("sh",) and "scancel" in call.stdin:
            self.slurm = [key for key in self.slurm if key not in call.stdin]
            return Answer(0)
        return run_here(call) if word == "sh" else Answer(127, "", f"{word}: not found")


def said(service: Service) -> list[str]:
    """What was told of the batch system."""
    return [each["message"] for reports in service.reports("seen") for each in reports]


def test_it_drives_what_its_entry_says_also_where_another_answers_first(tmp_path: Path) -> None:
    both = Both()
    service = Service(wants("lyon-1", kind="slurm"), {}, {})
    work(tmp_path, service, both.run, scheduler="auto")
    assert (both.slurm, both.gridengine) == (["lyon-1"], [])
    assert service.heard[-1]["scheduler"] == "slurm"
    assert service.heard[-1]["scheduler_version"] == "22.05.8"


def test_it_says_why_it_cannot_drive_what_its_entry_says(tmp_path: Path) -> None:
    bare = Both("sbatch", "squeue")
    service = Service(wants("lyon-1", kind="slurm"), {}, {})
    work(tmp_path / "bare", service, bare.run, scheduler="auto")
    message = "its entry says `kind: slurm`, but this computer has gridengine 8.1.9: squeue: not found"
    assert said(service) == [message]
    assert bare.gridengine == []
    service = Service(wants("lyon-1", kind="slurm"), {}, {})
    work(tmp_path / "named", service, Both().run, scheduler="gridengine")
    [told] = said(service)
    assert told.startswith("its entry says `kind: slurm`, but its agent was started with --scheduler=gridengine: ")
    service = Service(wants("lyon-1", kind="loadleveler"), {}, {})
    work(tmp_path / "unknown", service, Both().run, scheduler="auto")
    [told] = said(service)
    assert told.startswith("its entry says `kind: loadleveler`, but its agent only knows dirac, ")


def test_an_entry_that_names_another_batch_system_is_followed_and_what_is_left_at_the_first_is_ended_there(
    tmp_path: Path,
) -> None:
    both = Both()
    cancel = {"type": "cancel-submitted", "site": SITE, "key": "lyon-1"}
    submit = {"type": "submit-pilot", "site": SITE, "key": "lyon-2"}
    after = {"entry": {"name": SITE, "kind": "gridengine"}, "effects": [cancel, submit], "interval_seconds": 0.0}
    service = Service(wants("lyon-1", kind="slurm"), {}, *[after] * 4)
    work(tmp_path, service, both.run, scheduler="auto")
    assert (both.slurm, both.gridengine) == ([], ["lyon-2"])
    assert [each["key"] for reports in service.reports("gone") for each in reports] == ["lyon-1"]
    assert service.heard[-1]["scheduler"] == "gridengine"


def test_a_batch_system_of_before_that_is_down_keeps_nothing_from_being_done_at_the_one_that_the_entry_names(
    tmp_path: Path,
) -> None:
    both = Both()

    class Dying(Service):
        def hear(self, says: dict[str, Any]) -> dict[str, Any]:
            both.absent = ("squeue",) if both.slurm else ()
            return super().hear(says)

    after = {**wants("lyon-2", kind="gridengine"), "expected": ["lyon-1"], "interval_seconds": 0.0}
    service = Dying(wants("lyon-1", kind="slurm"), {}, *[after] * 6)
    work(tmp_path, service, both.run, scheduler="auto")
    assert (both.slurm, both.gridengine) == (["lyon-1"], ["lyon-2"])
    assert service.reports("gone") == [[]] * 8
    assert said(service) == [""]
    asked = [argv for argv in both.called if argv[0] == "squeue"]
    assert len(asked) == 2  # and not at each look


def test_commands_of_the_batch_system_are_run_after_the_lines_of_setup(tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "squeue").write_text('#!/bin/sh\necho "$LOADED" >>' + str(tmp_path / "asked") + "\n")
    (folder / "squeue").chmod(0o755)
    setup = ["echo loading; export LOADED=slurm", f"export PATH={folder}:$PATH"]
    service = Service(wants(kind="slurm", setup=setup), {}, {})
    work(tmp_path / "agent", service, run_here, scheduler="auto")
    assert (tmp_path / "asked").read_text() == "slurm\n"
    assert said(service) == [""]


def test_it_leaves_when_the_service_that_started_it_says_so(tmp_path: Path) -> None:
    service = Service({**wants(kind="slurm"), "leave": "it is started anew"}, {})
    assert work(tmp_path, service, Both().run, scheduler="auto") == "it is started anew"
    assert len(service.heard) == 1


# --- files for the cache of the site -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "elsewhere/files"])
def test_a_file_that_was_brought_to_the_cache_is_told_at_once_although_the_service_lets_the_agent_wait(
    folder: str, tmp_path: Path
) -> None:
    told = threading.Event()

    class Patient(Service):
        def hear(self, says: dict[str, Any]) -> dict[str, Any]:
            answer = super().hear(says)
            if any(each["report"] == "file-arrived" for each in says["reports"]):
                told.set()
                self.leave("it was told")
            elif not says["reports"] and len(self.heard) > 1:
                assert told.wait(60.0)
            return answer

    effect = {"type": "fetch-file", "site": SITE, "key": "f-1", "locator": "s3://private/place", "name": "ab/abc"}
    named = str(tmp_path / folder) if folder else ""
    wanted = {"effects": [effect], "entry": {"name": SITE, "kind": "slurm", "cache": named}, "interval_seconds": 600.0}
    service = Patient(*[wanted] * 9, files={"/agent/transfers/f-1": b"content"})
    place = tmp_path / "place"
    assert work(place, service, lambda _: Answer(0, ""), scheduler="slurm") == "it was told"
    cache = tmp_path / folder if folder else place / "cache"
    assert (cache / "ab" / "abc").read_bytes() == b"content"
    assert service.heard[-1]["cache"] == str(cache)
    assert "private" not in "".join(each.read_text() for each in place.glob("*.json"))
