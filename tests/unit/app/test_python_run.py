"""Jobs run from Python against a server that answers what a test put into its mouth."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import pilotage
from pilotage.app.jobs.watch import JobWatcher, exit_code_of, is_over
from pilotage.app.state_folder import local_user
from pilotage.client import Server, ServerUnreachable
from pilotage.model.answers import FailureCard, FailureGroup, Progress, StageProgress, UnmadeTarget
from pilotage.model.events.payloads import JobAccepted
from pilotage.model.exit_codes import ExitCode
from pilotage.service.announcement import Announcement, announced
from tests.kit.canned_server import Answer, Asked, CannedServer, canned_server, event_view
from tests.kit.command_line import in_an_empty_folder
from tests.kit.events import Stream, registered
from tests.kit.sqlite_books import keep, opened

JOB = "sweep-abc123"


def job() -> pilotage.Job:
    return pilotage.Job("sweep").stage(each={"seed": range(1, 4)}, run="simulate {seed}", outputs=["{seed}.dat"])


def progress(**said: Any) -> Progress:
    fields = {"job": JOB, "name": "sweep", "state": "DONE", "packages": 3, "done": 3}
    return Progress(**(fields | said))  # type: ignore[arg-type]


def tell(server: CannedServer, *steps: Progress) -> None:
    left = list(steps)
    server.responders[f"/v1/jobs/{JOB}/progress"] = lambda _: Answer(
        msgspec.to_builtins(left.pop(0) if len(left) > 1 else left[0])
    )


def output(package: str, **said: Any) -> dict[str, Any]:
    log = f"/v1/jobs/{JOB}/packages/{package}/logs/1/stdout"
    fields: dict[str, Any] = {
        "id": f"{JOB}/{package}", "path": "sweep/001/001/001", "state": "DONE", "attempt": 1, "exit_code": "SUCCESS",
        "exit_message": "", "exit_status": 0, "signal": None, "standard_output": {"url": log}, "standard_error": None,
        "application_output": {"url": log}, "application_error": None, "folder": "/results",
        "outputs": [{"name": "1.dat", "size_bytes": 1, "sha256": "0" * 64}], "measured": {"cpu_user_seconds": 1.5},
    }  # fmt: skip
    return fields | said


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedServer]:
    """A service of the folder that has three packages done, the second after a failure of its own."""
    in_an_empty_folder(tmp_path, monkeypatch)
    state = tmp_path / ".pilotage"
    state.mkdir()
    (state / "token").write_text("secret")
    with canned_server() as canned:
        announcement = Announcement(
            url=canned.url, pid=os.getpid(), token_file=str(state / "token"), version="1", started_at=0.0, socket="s"
        )
        canned.answer("/v1/jobs", {"job": JOB, "packages": 3}, status=201)
        tell(canned, progress(state="RUNNING", done=1), progress())
        endings = {1: ("CommitGranted", "1.1.1"), 2: ("Aborted", "1.2.1"), 3: ("CommitGranted", "1.3.1")}

        def events(asked: Asked) -> Answer:
            after = int(asked.parameters["after"])
            found = [
                event_view(position=at, type=kind, package=package)
                for at, (kind, package) in endings.items()
                if at > after
            ]
            last = found[:2][-1]["position"] if found else after
            return Answer({"events": found[:2], "after": last, "more": len(found) > 2})

        canned.responders[f"/v1/jobs/{JOB}/events"] = events
        for package in ("1.1.1", "1.2.1", "1.3.1"):
            bad = {"state": "ABORTED", "exit_code": "EXECUTION_FAILED", "outputs": []} if package == "1.2.1" else {}
            canned.answer(f"/v1/jobs/{JOB}/packages/{package}/outputs", output(package, **bad))
            canned.answer(f"/v1/jobs/{JOB}/packages/{package}/logs/1/stdout", f"said {package}".encode())
        canned.answer(
            f"/v1/jobs/{JOB}/packages", {"packages": [{"id": each} for each in ("1.1.1", "1.2.1")], "next": None}
        )
        with announced(state, announcement):
            yield canned


def test_a_job_built_in_python_is_run_in_the_current_folder(server: CannedServer, tmp_path: Path) -> None:
    result = pilotage.run(job())
    assert (result.job, result.state, result.ok, result.exit_code) == (JOB, "DONE", True, 0)
    assert result.counts["done"] == 3
    (asked,) = [each for each in server.asked if each.method == "POST"]
    assert asked.body["folder"] == str(tmp_path)


def test_a_document_is_run_by_its_path(server: CannedServer, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(job().text)
    assert pilotage.run(tmp_path / "a.yaml").ok
    assert pilotage.run(pilotage.load("a.yaml")).ok


def targets_sent(server: CannedServer) -> list[object]:
    return [each.body["lists"]["lists"].get("targets") for each in server.asked if each.path == "/v1/jobs"]


def test_a_job_is_run_for_some_of_its_files_alone(server: CannedServer, tmp_path: Path) -> None:
    document = tmp_path / "sub" / "a.yaml"
    document.parent.mkdir()
    document.write_text(job().text)
    pilotage.run(job(), targets=["2.dat", "./3.dat"])
    pilotage.submit(job(), targets="2.dat")
    pilotage.run(document, targets=["sub/1.dat"])
    pilotage.run(document, targets=["1.dat"])
    pilotage.run(pilotage.load(document, targets=["sub/?.dat"]), folder=document.parent)
    assert asyncio.run(pilotage.arun(job(), targets=["1.dat"])).ok
    assert len([*pilotage.stream(job(), targets=["3.dat"])]) == 3
    pilotage.Client(server.url).submit(job(), targets=["2.dat"])
    assert targets_sent(server) == [
        ["2.dat", "3.dat"], ["2.dat"], ["1.dat"], ["1.dat"], ["?.dat"], ["1.dat"], ["3.dat"], ["2.dat"]
    ]  # fmt: skip


def test_files_that_a_job_does_not_make_or_that_come_too_late_are_refused(server: CannedServer) -> None:
    with pytest.raises(pilotage.DocumentError, match=r"nothing in this document makes '4\.dat'"):
        pilotage.run(job(), targets=["4.dat"])
    with pytest.raises(pilotage.PilotageError, match="its targets are chosen"):
        pilotage.run(job().load(), targets=["1.dat"])
    assert not [each for each in server.asked if each.method == "POST"]


def test_a_plan_says_what_a_run_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    plan = pilotage.plan(job(), targets=["2.dat"], slots=1)
    assert (plan.packages, plan.would_run, plan.left_out, plan.slots) == (1, 1, 2, 1)
    assert pilotage.plan(job()).would_run == 3
    assert not list(tmp_path.iterdir())


def limit_packages(folder: Path, count: int) -> None:
    (folder / "pilotage.toml").write_text(f"[engine]\nowner_packages_max = {count}\n", "utf-8")


def test_a_plan_without_a_service_is_refused_over_the_quota_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    limit_packages(tmp_path, 3)
    assert pilotage.plan(job()).would_run == 3
    limit_packages(tmp_path, 2)
    with pytest.raises(pilotage.PilotageError, match="3 more packages would exceed the limit of 2 for"):
        pilotage.plan(job())


@pytest.mark.parametrize("owner, is_refused", [(local_user(), True), ("somebody-else", False)])
def test_a_plan_without_a_service_counts_the_unfinished_packages_of_the_same_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, is_refused: object
) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    limit_packages(tmp_path, 4)
    by = Stream(stream="service-1")
    with opened(tmp_path / ".pilotage") as journal:
        keep(journal, [by.event(registered(owner=owner), job="j1"), by.event(JobAccepted(), job="j1")])
    if is_refused:
        with pytest.raises(pilotage.PilotageError, match="3 more packages would exceed the limit of 4 for"):
            pilotage.plan(job())
    else:
        assert pilotage.plan(job()).would_run == 3


def test_a_faulty_job_raises_every_fault(server: CannedServer) -> None:
    with pytest.raises(pilotage.DocumentError):
        pilotage.run(pilotage.Job("faulty").stage(run="./a", outputs="../out"))
    assert not server.asked


def test_packages_that_fail_raise_only_where_that_is_asked_for(server: CannedServer) -> None:
    card = FailureCard(package="1.2.1", reason="wall-time")
    tell(server, progress(done=2, failed=1, failures=(FailureGroup(count=1, card=card),)))
    result = pilotage.run(job())
    assert (result.ok, result.failures[0].card.reason) == (False, "wall-time")
    with pytest.raises(pilotage.PackagesFailed, match="1 of 3 packages failed \\(1 of wall-time\\)"):
        result.raise_for_failures()


def test_a_target_that_was_not_made_raises_only_where_that_is_asked_for(server: CannedServer) -> None:
    tell(server, progress(unmade=(UnmadeTarget(target="x<.dat", why="nobody has"),)))
    result = pilotage.run(job())
    assert (result.ok, result.unmade[0].target) == (False, "x<.dat")
    with pytest.raises(pilotage.PackagesFailed, match=r"x<\.dat was asked for and was not made"):
        result.raise_for_failures()
    assert "<b>not made:</b> x&lt;.dat: nobody has" in result._repr_html_()


def test_callbacks_hear_of_each_package_once(server: CannedServer) -> None:
    finished: list[str] = []
    failed: list[str] = []
    seen: list[int] = []
    tell(server, *[progress(state="RUNNING", done=1)] * 2, progress())
    pilotage.run(
        job(),
        on_finished=lambda each: finished.append(each.package),
        on_failed=lambda each: failed.append(f"{each.package} {each.exit_code}"),
        on_progress=lambda each: seen.append(each.done),
    )
    assert (finished, failed) == (["1.1.1", "1.3.1"], ["1.2.1 EXECUTION_FAILED"])
    assert seen == [1, 3]


def test_finished_packages_are_streamed_as_they_come(server: CannedServer) -> None:
    assert [(each.package, each.ok) for each in pilotage.stream(job())] == [
        ("1.1.1", True),
        ("1.2.1", False),
        ("1.3.1", True),
    ]


def test_what_a_package_left_is_asked_for_when_the_service_has_seen_to_it(server: CannedServer) -> None:
    """The end of a package is in the book before its files have their names and its logs are kept."""
    list(pilotage.stream(job()))
    asked = [each.path.rsplit("/", 1)[1] for each in server.asked if each.path.startswith(f"/v1/jobs/{JOB}/")]
    last_events = max(at for at, word in enumerate(asked) if word == "events")
    assert asked[last_events + 1 : last_events + 3] == ["progress", "outputs"]


def test_an_output_is_gasws_output_object(server: CannedServer) -> None:
    result = pilotage.run(job())
    (first, second) = result.outputs
    assert (first.id, first.exit_code, first.exit_status) == (f"{JOB}/1.1.1", "SUCCESS", 0)
    assert (first.standard_output, first.application_output, first.standard_error) == ("said 1.1.1", "said 1.1.1", "")
    assert first.uploaded == (Path("/results/1.dat"),)
    assert (first.measured.cpu_user_seconds, first.measured.read_bytes) == (1.5, None)
    assert (second.ok, second.uploaded) == (False, ())


def test_a_coroutine_can_wait_for_a_job_beside_others(server: CannedServer) -> None:
    async def both() -> tuple[pilotage.Result, pilotage.Result]:
        return await asyncio.gather(pilotage.arun(job()), pilotage.arun(job()))

    assert [each.ok for each in asyncio.run(both())] == [True, True]


def test_a_cancelled_coroutine_stops_waiting(server: CannedServer) -> None:
    looked = threading.Event()

    def respond(_: Asked) -> Answer:
        looked.set()
        return Answer(msgspec.to_builtins(progress(state="RUNNING", done=0)))

    server.responders[f"/v1/jobs/{JOB}/progress"] = respond

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(pilotage.arun(job()))
        assert await asyncio.to_thread(looked.wait, 60), waiting  # else it ended before it had looked
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())  # it waits for its threads: one that went on would hang here


def test_a_submitted_job_is_waited_for_later(server: CannedServer) -> None:
    result = pilotage.submit(job())
    assert (result.finished, result.progress.done) == (False, 1)
    assert result.wait().finished


def test_a_client_submits_to_a_server_and_asks_for_jobs_by_their_id(server: CannedServer) -> None:
    client = pilotage.Client(server.url)
    assert client.url == server.url
    assert client.submit(job()).wait().ok
    assert client.result(JOB).job == JOB
    server.refuse("/v1/jobs/none/progress", 404, "not_found", "there is no such job")
    with pytest.raises(pilotage.PilotageError, match="no such job"):
        client.result("none")


def test_a_job_is_made_also_where_everything_of_it_was_made_before(server: CannedServer) -> None:
    """Its outputs, its stream and its calls come from it."""
    pilotage.run(job())
    pilotage.Client(server.url).submit(job())
    submitted = [asked.body for asked in server.asked if (asked.method, asked.path) == ("POST", "/v1/jobs")]
    assert [each.get("only_if_needed", False) for each in submitted] == [False, False]


def test_a_notebook_gets_bars_and_nothing_of_a_name_is_markup(server: CannedServer) -> None:
    stages = (StageProgress(stage=1, name="<b>", packages=4, done=1, failed=1), StageProgress(stage=2, late=True))
    card = FailureCard(package="1.2.1", reason="signal", exit_message="<script>")
    tell(server, progress(packages=4, done=1, failed=1, stages=stages, failures=(FailureGroup(count=1, card=card),)))
    html = pilotage.run(job())._repr_html_()
    assert "width:25.00%" in html
    assert "&lt;b&gt;" in html
    assert "not known yet" in html
    assert "<script>" not in html


def test_in_a_notebook_the_result_is_drawn_while_it_runs(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Handle:
        def update(self, result: pilotage.Result) -> None:
            drawn.append(result.state)

    shell = type("ZMQInteractiveShell", (), {})()
    notebook, display = ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(notebook, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(display, "display", lambda result, *, display_id: Handle(), raising=False)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    pilotage.run(job())
    assert drawn[-1] == "DONE"


# --- following --------------------------------------------------------------------------------------------------------


def test_a_service_that_is_gone_for_too_long_is_given_up() -> None:
    seconds = iter(float(number) for number in range(0, 1000, 30))

    def connect() -> Server:
        raise ServerUnreachable("gone")

    following = JobWatcher(connect, JOB, clock=lambda: next(seconds))
    with pytest.raises(ServerUnreachable):
        following.progress()


def test_following_ends_when_it_is_told_to() -> None:
    stop = threading.Event()
    stop.set()
    assert list(JobWatcher(lambda: pytest.fail("asked"), JOB, stop=stop).until_over()) == []


@pytest.mark.parametrize(
    "said, code",
    [
        ({}, ExitCode.COMPLETE),
        ({"state": "CLEARED"}, ExitCode.COMPLETE),
        ({"failed": 1}, ExitCode.FAILED),
        ({"unmade": (UnmadeTarget(target="a"),)}, ExitCode.FAILED),
        ({"state": "CANCELLED", "cancelled": 3}, ExitCode.FAILED),
        ({"state": "WAITING", "stuck": "why"}, ExitCode.FAILED),
        ({"state": "WAITING", "held": True, "stuck": "the job is held"}, ExitCode.STOPPED),
    ],
)
def test_a_job_ends_in_an_exit_code(said: dict[str, Any], code: ExitCode) -> None:
    assert exit_code_of(progress(**said)) == code


def test_a_job_is_followed_until_nothing_of_it_is_on_its_way_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([progress(), progress(unpublished=1), progress(unpublished=1), progress(), progress()])
    following = JobWatcher(lambda: pytest.fail("asked"), JOB)
    monkeypatch.setattr(following, "progress", lambda: next(told))
    assert [each.unpublished for each in following.until_over()] == [1, 1, 0]
    assert list(told) == []


@pytest.mark.parametrize("said", [{"running": 1}, {"unpublished": 1}, {"state": "RUNNING"}])
def test_a_job_is_not_over_while_something_runs_or_files_are_on_their_way(said: dict[str, Any]) -> None:
    assert not is_over(progress(**said))
