"""The commands that submit, steer and look at jobs, against a server that answers what the test says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.client import server as client_server
from tests.kit.canned_server import Answer, Asked, CannedServer, attempt_view, canned_server, job_view, package_view
from tests.kit.command_line import in_an_empty_folder, refused, run

MOMENT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
ACCEPTED = {"operation": 7, "events": 2}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedServer]:
    with canned_server() as server:
        monkeypatch.setenv("PILOTAGE_SERVER", server.url)
        yield server


def posted(canned: CannedServer) -> list[tuple[str, Any]]:
    return [(asked.path, asked.body) for asked in canned.asked if asked.method == "POST"]


# --- submitting -------------------------------------------------------------------------------------------------------


def test_a_document_is_submitted_for_some_of_its_files_alone(canned: CannedServer) -> None:
    canned.answer("/v1/jobs", {"job": "j-1", "packages": 1}, status=201)
    text = "pilotage: 1\njob: j\nstages:\n  - each: {n: 1..3}\n    shell: echo > {n}.dat\n    outputs: ['{n}.dat']\n"
    Path("pilotage.yaml").write_text(text)
    Path("sub").mkdir()
    Path("sub/other.yaml").write_text(text)
    assert run("submit", "2.dat").stdout == "j-1\n"
    assert run("submit", "sub/other.yaml", "sub/3.dat", "1.dat").exit_code == 0
    jobs = [body for path, body in posted(canned) if path == "/v1/jobs"]
    sent = [(body["document"], body["lists"]["lists"]["targets"]) for body in jobs]
    assert sent == [("pilotage.yaml", ["2.dat"]), ("other.yaml", ["3.dat", "1.dat"])]
    assert "nothing in this document makes '4.dat'" in refused("submit", "4.dat")


# --- steering ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, body, told",
    [
        (("kill", "j", "--message", "enough"), {"operation": "kill", "message": "enough"}, "killed j"),
        (("kill", "j/001/002/001"), {"operation": "kill", "package": "1.2.1"}, "killed j/1.2.1"),
        (("kill", "j/1.2"), {"operation": "kill", "stage": 1, "line": 2}, "killed j/1.2"),
        (("kill", "j/001/002"), {"operation": "kill", "stage": 1, "line": 2}, "killed j/1.2"),
        (("hold", "j"), {"operation": "hold"}, "held j"),
        (("release", "j/1.2.1"), {"operation": "release", "package": "1.2.1"}, "released j/1.2.1"),
        (("restart", "j/1.2.1"), {"operation": "restart", "package": "1.2.1"}, "restarted j/1.2.1"),
        (("retry", "--failed", "j"), {"operation": "restart"}, "restarted j"),
        (("retry", "j/1.2.1"), {"operation": "restart", "package": "1.2.1"}, "restarted j/1.2.1"),
        (("retry", "--force", "j/1.2.1"), {"operation": "restart", "package": "1.2.1"}, "restarted j/1.2.1"),
        (("retry", "--force", "j"), {"operation": "restart"}, "restarted j"),
        (("reschedule", "j/1.2.1"), {"operation": "reschedule", "package": "1.2.1"}, "rescheduled j/1.2.1"),
        (("retry", "--elsewhere", "j/1.2.1"), {"operation": "reschedule", "package": "1.2.1"}, "rescheduled j/1.2.1"),
        (("replicate", "j/1.2.1"), {"operation": "replicate", "package": "1.2.1"}, "replicated j/1.2.1"),
        (("drop", "j", "1.2"), {"operation": "drop", "stage": 1, "line": 2}, "dropped j/1.2"),
        (("restore", "j", "001/002"), {"operation": "restore", "stage": 1, "line": 2}, "restored j/1.2"),
    ],
)
def test_each_command_asks_for_its_operation(
    canned: CannedServer, words: tuple[str, ...], body: dict[str, Any], told: str
) -> None:
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    result = run(*words)
    assert (result.exit_code, result.stdout) == (0, f"{told}\n")
    assert posted(canned) == [("/v1/jobs/j/operations", body)]


def test_a_line_that_was_killed_is_named_to_programs_as_it_is_to_people(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    canned.refuse("/v1/jobs/k/operations", 404, "unknown_line", "stage 1 of the job k has no line 9")
    result = run("kill", "j/1.2", "k/1.9", "--message", "enough", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["done"]) == (2, [{"subject": "j/1.2"} | ACCEPTED])
    assert [(each["subject"], each["code"]) for each in told["refused"]] == [("k/1.9", "unknown_line")]
    line = {"operation": "kill", "stage": 1, "message": "enough"}
    assert [body for _, body in posted(canned)] == [line | {"line": 2}, line | {"line": 9}]


@pytest.mark.parametrize("state, code", [("DONE", 2), ("ABORTED", 0)])
def test_retry_does_not_run_again_what_did_not_fail(canned: CannedServer, state: str, code: int) -> None:
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    found = {"package": package_view(id="1.2.1", state=state), "attempts": []}
    canned.answer("/v1/jobs/j/packages/1.2.1", found)
    result = run("retry", "j/1.2.1")
    assert (result.exit_code, len(posted(canned))) == (code, int(code == 0))
    assert ("did not fail: DONE" in result.stderr) == (code == 2)
    assert ("pilotage retry --force j/1.2.1" in result.stderr) == (code == 2)
    assert run("retry", "--force", "j/1.2.1").exit_code == 0
    assert run("restart", "j/1.2.1").exit_code == 0


@pytest.mark.parametrize(
    "old, new",
    [
        (("restart", "j/1.2.1", "--message", "x"), ("retry", "--force", "j/1.2.1", "--message", "x")),
        (("restart", "j", "j/1.2.1"), ("retry", "--force", "j", "j/1.2.1")),
        (("restart", "--where", "site=lyon"), ("retry", "--force", "--where", "site=lyon")),
        (("restart", "--jobs", "--where", "name=a"), ("retry", "--jobs", "--where", "name=a")),
        (("restart", "j/1.2.1", "k"), ("retry", "--force", "j/1.2.1", "k")),
        (("restart",), ("retry", "--force")),
        (("reschedule", "j/1.2.1"), ("retry", "--elsewhere", "j/1.2.1")),
        (("reschedule", "--where", "site=lyon"), ("retry", "--elsewhere", "--where", "site=lyon")),
        (("reschedule", "j"), ("retry", "--elsewhere", "j")),
        (("reschedule", "j/1.2.1", "k/1.1.1"), ("retry", "--elsewhere", "j/1.2.1", "k/1.1.1")),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_an_older_word_does_and_says_what_retry_does_with_its_option(
    canned: CannedServer, old: tuple[str, ...], new: tuple[str, ...], *, as_json: bool
) -> None:
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    for path in ("/v1/jobs/k/operations", "/v1/jobs/k"):
        canned.refuse(path, 404, "unknown_job", "no job is called 'k'")
    for target in ("packages", "jobs"):
        canned.answer(f"/v1/counts/{target}", {"count": 3})
    canned.answer("/v1/operations", {"found": 3, "done": 2, "refused": 1, "told": []})
    told: list[tuple[object, ...]] = []
    for words in (old, new):
        before = len(posted(canned))
        result = run(*words, *(["--json"] if as_json else []))
        said = result.stderr.rpartition("Error: ")[2]  # the usage in front names the word itself
        out = result.stdout.replace(f"see: main {words[0]} --help", "")
        told.append((result.exit_code, out, said, posted(canned)[before:]))
    assert told[0] == told[1]
    assert as_json == str(told[0][1]).startswith("{")


def test_what_runs_is_retried_elsewhere_for_a_reason(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    assert run("retry", "--elsewhere", "j/1.2.1", "--message", "slow disk").exit_code == 0
    assert posted(canned)[0][1] == {"operation": "reschedule", "package": "1.2.1", "message": "slow disk"}


@pytest.mark.parametrize(
    "words, told",
    [
        (("kill",), "--where QUERY"),
        (("retry", "j"), "pilotage retry --failed j"),
        (("retry", "--failed", "j/1.2.1"), "j/1.2.1 is a single package"),
        (("retry", "--failed", "--force", "j/1.2.1"), "j/1.2.1 is a single package"),
        (("retry", "--elsewhere", "j"), "Name a package of it"),
        (("retry", "--elsewhere", "--failed", "j"), "leave out --failed"),
        (("retry", "--elsewhere", "--force", "j/1.2.1"), "leave out --force"),
        (("retry", "--elsewhere", "--jobs", "--where", "all"), "leave out --jobs"),
        (("reschedule", "j"), "Name a package of it"),
        (("drop", "j"), "pilotage drop JOB STAGE.LINE"),
        (("drop", "j", "1"), "not a line"),
        (("drop", "j", "0.1"), "not a line"),
        (("drop", "j", "1.1", "--where", "all"), "not both"),
        (("drop", "--where", "all", "--remove-files"), "--remove-files needs lines by name"),
        (("kill", "j", "k", "--where", "all"), "at most one JOB"),
        (("kill", "j", "--where", "all", "--jobs"), "without --where"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    canned: CannedServer, words: tuple[str, ...], told: str
) -> None:
    assert told in refused(*words)
    assert canned.asked == []


def test_of_several_one_that_is_refused_is_named_and_the_others_are_done(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/a/operations", ACCEPTED)
    canned.refuse("/v1/jobs/b/operations", 409, "job_over", "every package of the job b is over")
    canned.answer("/v1/jobs/c/operations", ACCEPTED)
    result = run("kill", "a", "b", "c")
    assert (result.exit_code, result.stdout) == (2, "killed a\nkilled c\n")
    assert "b: every package of the job b is over" in result.stderr
    told = json.loads(run("kill", "a", "b", "--json").stdout)
    assert [each["subject"] for each in told["done"]] == ["a"]
    assert told["refused"] == [{"subject": "b", "code": "job_over", "message": "every package of the job b is over"}]


def test_an_operation_is_sent_again_under_the_same_key_where_the_connection_breaks(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_server, "PAUSES_SECONDS", (0.0, 0.0, 0.0))
    keys: list[str] = []
    real = client_server.Server._exchange

    def breaking(self: Any, method: str, path: str, body: Any, headers: Any) -> Any:
        keys.append(headers["Idempotency-Key"])
        if len(keys) < 3:
            raise ConnectionResetError("reset")
        return real(self, method, path, body, headers)

    monkeypatch.setattr(client_server.Server, "_exchange", breaking)
    canned.answer("/v1/jobs/j/operations", ACCEPTED)
    assert run("replicate", "j/1.1.1").exit_code == 0
    assert (len(keys), len(set(keys)), len(posted(canned))) == (3, 1, 1)


# --- the files of lines that are dropped --------------------------------------------------------------------------------


def line_files(**more: Any) -> dict[str, Any]:
    none = {"removed": 0, "removed_bytes": 0, "gone": 0, "kept": 0, "removed_names": [], "kept_files": []}
    return ACCEPTED | {"files": none | more}


def made(name: str, *, size_bytes: int) -> dict[str, Any]:
    return {"name": name, "size_bytes": size_bytes, "sha256": "ab" * 32}


def output_of(package: str, *files: dict[str, Any]) -> dict[str, Any]:
    nothing = ("attempt", "exit_code", "exit_message", "exit_status", "signal", "standard_output", "standard_error")
    logs = ("application_output", "application_error")
    known = {"id": f"J/{package}", "path": "j/001/002/001", "state": "DONE", "folder": "/x", "outputs": files}
    return dict.fromkeys((*nothing, *logs)) | known


def test_dropping_a_line_says_how_many_files_stay_and_how_they_go(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j/operations", line_files(kept=2))
    assert run("drop", "j", "1.2").stdout == (
        "dropped j/1.2\n2 files that it made stay; remove with: pilotage drop --remove-files j 1.2\n"
    )
    assert json.loads(run("drop", "j", "1.2", "--json").stdout)["done"][0]["files"]["kept"] == 2


def test_files_of_a_line_are_removed_only_where_somebody_says_yes(canned: CannedServer) -> None:
    made_by_line = output_of("1.2.1", made("a", size_bytes=1000), made("b", size_bytes=24))
    canned.answer("/v1/jobs/J/packages/1.2.1/outputs", made_by_line)
    canned.refuse("/v1/jobs/J/packages/1.2.2/outputs", 404, "unknown_package", "no such package")
    changed = {"name": "b", "reason": "changed", "message": "somebody has changed it"}
    told = line_files(removed=1, removed_bytes=1000, gone=1, kept=1, removed_names=["a"], kept_files=[changed])
    canned.answer("/v1/jobs/J/operations", told)
    asked = refused("drop", "--remove-files", "J", "1.2")
    assert "Drop J/1.2 and remove 2 files that it made, 1 KiB? There is no terminal to ask on: use --yes." in asked
    assert posted(canned) == []
    assert run("drop", "--remove-files", "J", "1.2", "--yes").stdout == (
        "dropped J/1.2\nremoved 1 file, 1000 B: a\n1 file of it was already gone\nkept b: somebody has changed it\n"
    )
    body = {"operation": "drop", "stage": 1, "line": 2, "remove_files": True}
    assert posted(canned) == [("/v1/jobs/J/operations", body)]


def test_of_many_files_the_first_are_named(canned: CannedServer) -> None:
    kept = [{"name": f"k{n}", "reason": "read", "message": "2.1.1 reads it"} for n in range(12)]
    names = [f"f{n}" for n in range(7)]
    told = line_files(removed=7, removed_bytes=7, kept=12, removed_names=names, kept_files=kept)
    canned.answer("/v1/jobs/j/operations", told)
    shown = run("drop", "--remove-files", "--yes", "j", "1.2").stdout.splitlines()
    assert shown[1] == "removed 7 files, 7 B: f0, f1, f2, f3, f4 and 2 more"
    assert shown[2:][9:] == ["kept k9: 2.1.1 reads it", "and 2 more were kept; --json and the book list them"]


def test_a_line_that_made_nothing_is_dropped_without_a_question(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j/packages/1.2.1/outputs", output_of("1.2.1"))
    canned.refuse("/v1/jobs/j/packages/1.2.2/outputs", 404, "unknown_package", "no such package")
    canned.answer("/v1/jobs/j/operations", line_files())
    assert run("drop", "--remove-files", "j", "1.2").stdout == "dropped j/1.2\n"


def found(count: int, **more: Any) -> dict[str, Any]:
    return {"found": count, "done": count, "refused": 0, "told": [], **more}


def test_everything_that_a_query_finds_is_steered_at_once(canned: CannedServer) -> None:
    canned.answer("/v1/counts/packages", {"count": 3, "sealed_jobs": 0})
    not_done = [{"subject": "j/1.1.1", "code": "package_over", "message": "1.1.1 is over"}]
    canned.answer("/v1/operations", found(3, done=2, refused=1, told=not_done))
    result = run("kill", "j", "--where", "state=RUNNING")
    assert (result.exit_code, result.stdout) == (2, "killed 2 packages of 3 found\n")
    assert "not j/1.1.1: 1.1.1 is over" in result.stderr
    assert canned.asked[1].parameters == {"query": "state=RUNNING", "job": "j"}
    assert posted(canned) == [("/v1/operations", {"operation": "kill", "where": "state=RUNNING", "job": "j"})]


def test_sets_of_jobs_are_killed(canned: CannedServer) -> None:
    canned.answer("/v1/counts/jobs", {"count": 2})
    canned.answer("/v1/operations", found(2))
    result = run("kill", "--jobs", "--where", "owner=ann", "--json")
    assert json.loads(result.stdout)["done"] == 2
    assert posted(canned)[0][1]["target"] == "jobs"


def test_more_than_a_hundred_are_done_only_where_somebody_says_yes(canned: CannedServer) -> None:
    canned.answer("/v1/counts/packages", {"count": 101, "sealed_jobs": 0})
    canned.answer("/v1/operations", found(101))
    assert "Hold 101 packages?" in refused("hold", "--where", "state=WAITING")
    assert posted(canned) == []
    assert run("hold", "--where", "state=WAITING", "--yes").stdout == "held 101 packages of 101 found\n"
    canned.answer("/v1/counts/packages", {"count": 100, "sealed_jobs": 0})
    assert run("hold", "--where", "state=WAITING").exit_code == 0


# --- looking ----------------------------------------------------------------------------------------------------------


def test_an_explanation_is_told_in_words(canned: CannedServer) -> None:
    reasons = [
        {"code": "waits-for-package", "message": "it needs the outputs of 1.1.1", "subject": "1.1.1", "count": 2},
        {"code": "held", "message": "it is held", "since": MOMENT, "next_step": "release it"},
    ]
    told = {"job": "j", "package": "1.2.1", "epoch": 2, "standing": "blocked", "reasons": reasons}
    canned.answer("/v1/jobs/j/packages/1.2.1/explain", told)
    assert run("explain", "j/1.2.1").stdout == (
        "j/1.2.1: blocked, epoch 2\n"
        "  it needs the outputs of 1.1.1 (2 in all)\n"
        "  it is held (since 2023-11-14 22:13:20Z)\n"
        "    next: release it\n"
    )
    assert json.loads(run("explain", "j/1.2.1", "--json").stdout)["standing"] == "blocked"
    for words in ([], ["--json"]):
        assert run("why", "j/1.2.1", *words).stdout == run("explain", "j/1.2.1", *words).stdout
    canned.answer(
        "/v1/jobs/j/packages", {"packages": [package_view(id="1.1.1"), package_view(id="1.2.1")], "next": "x"}
    )
    assert "is a job with several packages" in refused("explain", "j")
    canned.answer("/v1/jobs/j/packages", {"packages": [package_view(id="1.2.1")], "next": None})
    assert run("explain", "j").stdout.startswith("j/1.2.1: blocked")


def log(attempt: int, stream: str, head: str, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "stream": stream, "head": head, "tail": "", "dropped_bytes": 0, "final": True, **more}


def test_the_logs_of_the_last_attempt_are_shown_or_of_another(canned: CannedServer) -> None:
    kept = [log(1, "stdout", "old\n"), log(2, "stdout", "new"), log(2, "stderr", "oh\n")]

    def respond(asked: Asked) -> Answer:
        wanted = asked.parameters.get("attempt")
        return Answer({"logs": [each for each in kept if wanted in (None, str(each["attempt"]))]})

    canned.responders["/v1/jobs/j/packages/1.1.1/logs"] = respond
    package = package_view(id="1.1.1", job="j", state="WAITING")
    canned.answer("/v1/jobs/j/packages/1.1.1", {"package": package, "attempts": []})
    assert run("logs", "j/1.1.1").stdout == "--- stdout of attempt 2 ---\nnew\n--- stderr of attempt 2 ---\noh\n"
    assert run("logs", "j/1.1.1", "--stdout").stdout == "new"
    assert run("logs", "j/1.1.1", "--attempt", "1", "--stdout").stdout == "old\n"
    assert len(json.loads(run("logs", "j/1.1.1", "--json").stdout)["logs"]) == 3
    kept.clear()
    assert "no log was written yet" in run("logs", "j/1.1.1").stderr


def test_the_logs_say_how_an_attempt_failed_whatever_its_programs_wrote(canned: CannedServer) -> None:
    package = package_view(id="1.1.1", job="j", state="WAITING")
    failed = attempt_view(
        attempt=3, exit_code="ERROR_FILE_NOT_FOUND", reason="missing-input", exit_message="no x.dat\nlast words"
    )
    canned.answer("/v1/jobs/j/packages/1.1.1", {"package": package, "attempts": [failed]})
    canned.answer("/v1/jobs/j/packages/1.1.1/logs", {"logs": []})
    told = "attempt 3 failed (missing-input): no x.dat; it will be retried\n"
    assert run("logs", "j/1.1.1").stderr == f"attempt 3 wrote nothing; see: pilotage explain j/1.1.1\n{told}"
    canned.answer("/v1/jobs/j/packages/1.1.1/logs", {"logs": [log(3, "stderr", "oh\n")]})
    shown = run("logs", "j/1.1.1")
    assert (shown.stdout, shown.stderr) == ("--- stderr of attempt 3 ---\noh\n", told)
    assert run("logs", "j/1.1.1", "--stderr").stderr == ""


def test_of_a_job_the_logs_of_what_failed_are_shown_those_alike_together(canned: CannedServer) -> None:
    failed = [package_view(id=f"1.{number}.1", job="j", state="ABORTED") for number in (2, 3, 4)]
    canned.answer("/v1/jobs/j", job_view(id="j"))
    canned.responders["/v1/jobs/j/packages"] = lambda asked: Answer(
        {"packages": failed if asked.parameters.get("query") == "state=ABORTED" else [], "next": None}
    )
    for number, text in ((2, "no field"), (3, "no field"), (4, "no ink")):
        canned.answer(f"/v1/jobs/j/packages/1.{number}.1/logs", {"logs": [log(1, "stderr", f"{text}\n")]})
    assert run("logs", "j").stdout == (
        "=== j/1.2.1 and 1 other that wrote the same: ABORTED ===\n--- stderr ---\nno field\n"
        "=== j/1.4.1: ABORTED ===\n--- stderr ---\nno ink\n"
    )
    told = json.loads(run("logs", "j", "--json").stdout)
    assert [group["packages"] for group in told["groups"]] == [["1.2.1", "1.3.1"], ["1.4.1"]]
    assert told["more"] is False


def test_a_job_is_headed_by_the_same_counts_for_people_and_for_programs(canned: CannedServer) -> None:
    counts = {"aborted": 1, "cancelled": 10}
    canned.answer("/v1/jobs/j", job_view(id="j", state="CANCELLED", counts=counts, failed=1))
    canned.answer("/v1/jobs/j/stages", {"stages": [], "more": False})
    canned.answer("/v1/jobs/j/progress", {"job": "j", "state": "CANCELLED", "failed": 1, "cancelled": 10})
    assert run("status", "j").stdout.startswith("j: CANCELLED (1 failed)\n")
    told = json.loads(run("status", "j", "--json").stdout)
    assert (told["job"]["failed"], told["progress"]["failed"]) == (1, 1)


def test_a_job_that_was_stopped_is_not_said_to_run(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j", job_view(id="j", state="RUNNING", held=True, counts={"done": 2, "ready": 3}))
    canned.answer("/v1/jobs/j/stages", {"stages": [], "more": False})
    canned.answer("/v1/jobs/j/progress", {"job": "j", "state": "RUNNING", "held": True})
    assert run("status", "j").stdout.startswith("j: held, and nothing of it runs\n")


def test_a_log_is_followed_until_the_package_is_over(canned: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotage.cli.jobs.logs.LOOK_SECONDS", 0.0)
    texts = iter(["a", "a", "ab\n", "ab\nc\n"])
    states = iter(["RUNNING", "RUNNING", "RUNNING", "DONE"])
    canned.responders["/v1/jobs/j/packages/1.1.1/logs"] = lambda _: Answer(
        {"logs": [log(1, "stdout", next(texts), final=False)]}
    )
    canned.responders["/v1/jobs/j/packages/1.1.1"] = lambda _: Answer(
        {"package": package_view(id="1.1.1", job="j", state=next(states)), "attempts": []}
    )
    assert run("logs", "j/1.1.1", "--stdout", "--follow").stdout == "ab\nc\n"


def test_a_package_that_failed_is_shown_as_a_card(canned: CannedServer) -> None:
    package = package_view(id="1.2.1", job="j", path="s/001/002/001", state="WAITING")
    attempt = attempt_view(
        attempt=1, site="local", node="wn1", exit_code="EXECUTION_FAILED", reason="out-of-memory", signal=9,
        peak_memory_bytes=2**31, exit_message="it was killed\nlast words",
    )  # fmt: skip
    canned.answer("/v1/jobs/j/packages/1.2.1", {"package": package, "attempts": [attempt]})
    why = {"code": "waits-for-time", "message": "its next attempt is delayed", "until": MOMENT}
    told = {"job": "j", "package": "1.2.1", "epoch": 1, "standing": "delayed", "reasons": [why]}
    canned.answer("/v1/jobs/j/packages/1.2.1/explain", told)
    shown = run("status", "j/1.2.1").stdout
    for part in ("out-of-memory", "signal 9 (SIGKILL)", "peak memory 2 GiB", "on wn1", "| last words"):
        assert part in shown
    assert "it will be retried at 2023-11-14 22:13:20Z" in shown
    assert "look further: pilotage logs j/1.2.1 --attempt 1" in shown
    assert "pilotage explain j/1.2.1" in shown


def test_the_status_of_a_package_tells_what_the_attempt_that_counts_used(canned: CannedServer) -> None:
    package = package_view(id="1.2.1", job="j", state="DONE", attempt=2)
    attempts = [
        attempt_view(attempt=1, cpu_user_seconds=99.0, peak_memory_bytes=5),
        attempt_view(
            attempt=2, cpu_user_seconds=61.0, cpu_system_seconds=0.25, peak_memory_below_bytes=2**24, read_bytes=512,
            written_bytes=3 * 2**20,
        ),
    ]  # fmt: skip
    canned.answer("/v1/jobs/j/packages/1.2.1", {"package": package, "attempts": attempts})
    used = "1 min 1 s user, 0.25 s system, peak memory below 16 MiB, 512 B read, 3 MiB written"
    assert f"  used  {used}\n" in run("status", "j/1.2.1").stdout


def test_the_status_of_a_package_of_several_binaries_tells_of_each(canned: CannedServer) -> None:
    package = package_view(id="1.2.1", job="j", state="ABORTED", attempt=1)
    binaries = [
        {"number": 1, "started_at": MOMENT, "seconds": 1.5, "exit_status": 0},
        {"number": 2, "started_at": MOMENT + 2, "seconds": 61.0, "signal": 11, "reason": "segmentation-fault"},
    ]
    canned.answer(
        "/v1/jobs/j/packages/1.2.1", {"package": package, "attempts": [attempt_view(attempt=1, binaries=binaries)]}
    )
    shown = run("status", "j/1.2.1").stdout
    _, _, told = shown.partition("  binaries of attempt 1\n")
    first, second = told.splitlines()[:2]
    assert first.split() == ["1", "2023-11-14", "22:13:20Z", "1.5", "s", "exit", "code", "0"]
    assert second.split()[3:] == ["1", "min", "1", "s", "signal", "11", "segmentation-fault"]


def test_the_status_of_a_job_tells_why_nothing_can_move_and_what_failed(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j", job_view(id="j", state="WAITING", counts={"waiting": 2, "aborted": 3}, failed=3))
    canned.answer("/v1/jobs/j/stages", {"stages": [], "more": False})
    card = {"package": "1.1.1", "reason": "missing-output", "cause": "retries-exhausted"}
    progress = {
        "job": "j", "state": "WAITING", "failed": 3, "failures": [{"count": 3, "card": card}],
        "stuck": "no site can run 1.2.1 (local: 64 cores are asked for)", "next_step": "ask for less",
        "trouble": "no pilot could start at local",
    }  # fmt: skip
    canned.answer("/v1/jobs/j/progress", progress)
    shown = run("status", "j").stdout
    assert "nothing can move: no site can run 1.2.1 (local: 64 cores are asked for)\n    next: ask for less\n" in shown
    assert "trouble: no pilot could start at local" in shown
    assert "3 packages: missing-output, retries-exhausted" in shown


# --- results ----------------------------------------------------------------------------------------------------------


def file_view(name: str, content: bytes, **more: Any) -> dict[str, Any]:
    return {"name": name, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **more}


@pytest.fixture
def results(canned: CannedServer, tmp_path: Path) -> Path:
    """The results of a finished job `j`: two files, the second in a folder."""
    folder = tmp_path / "results"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.dat").write_bytes(b"aaa")
    (folder / "sub" / "b.dat").write_bytes(b"bbb")
    files = [file_view("a.dat", b"aaa", package="1.1.1"), file_view("sub/b.dat", b"bbb", package="1.2.1")]
    canned.answer("/v1/jobs/j", job_view(id="j", state="DONE"))
    canned.answer("/v1/jobs/j/outputs", {"folder": str(folder), "files": files, "next": None})
    canned.answer("/v1/jobs/j/clear", {"job": "j"})
    return folder


def test_the_results_of_a_job_are_verified_put_elsewhere_and_cleared(
    canned: CannedServer, results: Path, tmp_path: Path
) -> None:
    result = run("outputs", "j", "--to", "mine")
    assert (result.exit_code, result.stdout) == (0, "j: 2 files verified of 2, 6 B in mine\n")
    assert (tmp_path / "mine" / "sub" / "b.dat").read_bytes() == b"bbb"
    assert posted(canned) == [("/v1/jobs/j/clear", None)]
    assert run("outputs", "j", "--to", "mine").exit_code == 0  # the same again
    told = json.loads(run("outputs", "j", "--json").stdout)
    assert (told["cleared"], [each["name"] for each in told["files"]]) == (True, ["a.dat", "sub/b.dat"])


def test_results_that_are_not_what_was_granted_are_named_and_nothing_is_cleared(
    canned: CannedServer, results: Path, tmp_path: Path
) -> None:
    (results / "a.dat").write_bytes(b"aax")
    (results / "sub" / "b.dat").unlink()
    result = run("outputs", "j")
    assert (result.exit_code, posted(canned)) == (1, [])
    assert f"{results}/a.dat: its content is not what was granted" in result.stderr
    assert f"{results}/sub/b.dat: it is gone" in result.stderr
    assert f"move {results}/a.dat away, then make it again: pilotage retry --force j/1.1.1" in result.stderr
    (results / "a.dat").unlink()
    assert "\nmake it again: pilotage retry --force j/1.1.1\n" in run("outputs", "j").stderr
    progress = {"job": "j", "state": "DONE", "unpublished": 1, "next_step": "move a.dat away; then: pilotage release j"}
    canned.answer("/v1/jobs/j/progress", progress)
    said = run("outputs", "j").stderr
    assert "the outputs are not published yet: move a.dat away; then: pilotage release j" in said
    assert "restart" not in said
    (results / "a.dat").write_bytes(b"aa")
    assert "it has 2 bytes, and 3 were granted" in run("outputs", "j").stderr


@pytest.mark.parametrize(
    "counts, said",
    [
        ({"done": 2, "aborted": 1}, "1 package failed, so outputs"),
        ({"done": 2, "cancelled": 2}, "2 packages cancelled, so outputs"),
        ({"done": 2, "aborted": 1200, "cancelled": 3}, "1,200 packages failed, 3 cancelled, so outputs"),
    ],
)
def test_outputs_tell_of_packages_that_made_nothing(
    canned: CannedServer, results: Path, tmp_path: Path, counts: dict[str, int], said: str
) -> None:
    canned.answer("/v1/jobs/j", job_view(id="j", state="DONE", counts=counts))
    result = run("outputs", "j", "--to", "mine")
    assert (result.exit_code, result.stdout) == (1, "j: 2 files verified of 2, 6 B in mine\n")
    assert said in result.stderr
    assert "see why with: pilotage status j\n" in result.stderr
    assert posted(canned) == [("/v1/jobs/j/clear", None)]
    told = json.loads(run("outputs", "j", "--json").stdout)
    assert (told["failed"], told["cancelled"]) == (counts.get("aborted", 0), counts.get("cancelled", 0))
    assert (told["next_step"], len(told["files"]), told["cleared"]) == ("pilotage status j", 2, True)


def test_a_file_of_somebody_else_is_not_written_over(canned: CannedServer, results: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.dat").write_bytes(b"own")
    result = run("outputs", "j", "--to", "mine")
    assert (result.exit_code, posted(canned)) == (1, [])
    assert "mine/a.dat: another file is there already" in result.stderr
    assert (
        "move mine/a.dat away, or name another folder, or replace it with --replace; then run this again"
        in result.stderr
    )
    assert "restart" not in result.stderr
    assert (tmp_path / "mine" / "a.dat").read_bytes() == b"own"


def test_a_name_that_leads_out_of_the_folder_is_not_followed(canned: CannedServer, results: Path) -> None:
    files = [file_view("../secret", b"", package="1.1.1"), file_view("/etc/hostname", b"", package="1.1.1")]
    canned.answer("/v1/jobs/j/outputs", {"folder": str(results), "files": files, "next": None})
    result = run("outputs", "j", "--to", "mine")
    assert (result.exit_code, result.stderr.count("leads out of the folder")) == (1, 2)


def test_a_job_that_goes_on_is_not_cleared(canned: CannedServer, results: Path) -> None:
    canned.answer("/v1/jobs/j", job_view(id="j", state="RUNNING"))
    result = run("outputs", "j")
    assert (result.exit_code, posted(canned)) == (0, [])
    assert "the job has not ended yet" in result.stderr


def test_the_output_of_a_package_is_gasws_object(canned: CannedServer, results: Path) -> None:
    place = {"url": "/v1/jobs/j/packages/1.1.1/logs/1/stdout", "size_bytes": 3}
    told = {
        "id": "j/1.1.1", "path": "s/001/001/001", "state": "DONE", "attempt": 1, "exit_code": "SUCCESS",
        "exit_message": None, "exit_status": 0, "signal": None, "standard_output": place, "standard_error": None,
        "application_output": place, "application_error": None, "folder": str(results),
        "outputs": [file_view("a.dat", b"aaa")],
    }  # fmt: skip
    canned.answer("/v1/jobs/j/packages/1.1.1/outputs", told)
    shown = json.loads(run("outputs", "j/1.1.1", "--json").stdout)
    assert (shown["id"], shown["exit_code"], shown["standard_output"]) == ("j/1.1.1", "SUCCESS", place)
    assert shown["outputs"][0]["path"] == f"{results}/a.dat"
    text = run("outputs", "j/1.1.1").stdout
    assert "pilotage logs j/1.1.1 --stdout" in text
    assert posted(canned) == []
