"""Jobs that are run here, over HTTP: submitted, steered, watched, and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from litestar.testing import TestClient

from pilotage.engine.state.jobs import JobState
from pilotage.model.errors import DocumentError, Problem
from pilotage.model.events.payloads import KeptFile
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.model.exchange.operations import Drop, Hold, Kill, LineFiles, Refused, Replicate, Reschedule, Restart
from pilotage.model.jobs.submission import ResolvedLists, Submission
from pilotage.model.settings.settings import Settings
from pilotage.ports import NotOurs
from pilotage.service.http.services import AnswerCache, Services
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import TOKEN, WallClock, access_of, event, registered, sqlite_journal
from tests.kit.service_clients import SHA256, ServiceClient, a_bad_day, code_of, service_client_in

SUBMISSION = msgspec.to_builtins(Submission(definition={"job": "x"}, lists=ResolvedLists(), folder="/x"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    with service_client_in(tmp_path) as made:
        yield made


# --- submitting -------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_for_who_asks(service: ServiceClient) -> None:
    assert service.post("/v1/jobs", SUBMISSION) == (201, {"job": "job-1", "packages": 3})
    assert service.jobs.submitted[0].owner == "ann"
    assert code_of(service.post("/v1/jobs", SUBMISSION | {"owner": "ann"}, token="of-bob")) == (403, "forbidden")
    assert code_of(service.post("/v1/jobs", SUBMISSION, token="reads-only")) == (403, "forbidden")
    assert len(service.jobs.submitted) == 1


def test_a_document_names_the_owner_where_the_token_may_act_for_others(service: ServiceClient) -> None:
    named = SUBMISSION | {"definition": {"job": "x", "owner": "carla"}}
    assert service.post("/v1/jobs", named)[0] == 201
    assert service.post("/v1/jobs", named | {"owner": "dora"})[0] == 201
    assert [each.owner for each in service.jobs.submitted] == ["carla", "dora"]
    for path in ("/v1/jobs", "/v1/plan"):
        status, told = service.post(path, named, token="of-bob")
        assert (status, told["error"]["code"]) == (403, "forbidden")
        assert "book.any_owner" in told["error"]["hint"]
    own = SUBMISSION | {"definition": {"job": "x", "owner": "bob"}}
    assert service.post("/v1/jobs", own, token="of-bob")[0] == 201
    assert [each.owner for each in service.jobs.submitted] == ["carla", "dora", "bob"]


def test_what_is_sent_twice_under_one_key_is_done_once(service: ServiceClient) -> None:
    first = service.post("/v1/jobs", SUBMISSION, key="k")
    assert service.post("/v1/jobs", SUBMISSION, key="k") == first
    assert len(service.jobs.submitted) == 1
    assert service.post("/v1/jobs", SUBMISSION, key="k", token="of-bob")[1]["job"] == "job-2"  # keys are each one's own


def test_what_failed_under_a_key_may_be_tried_again(service: ServiceClient) -> None:
    service.jobs.fault = NotOurs("a file is in the way", subject="out.dat")
    assert code_of(service.post("/v1/jobs", SUBMISSION, key="k")) == (409, "not_ours")
    service.jobs.fault = None
    assert service.post("/v1/jobs", SUBMISSION, key="k")[0] == 201


def test_a_document_with_faults_is_refused_with_every_one_of_them(service: ServiceClient) -> None:
    problems = [
        Problem(file="a.yaml", line=3, code="E1", message="wrong"),
        Problem(file="a.yaml", code="E2", message="x"),
    ]
    service.jobs.fault = DocumentError(problems)
    status, told = service.post("/v1/jobs", SUBMISSION)
    assert (status, told["error"]["code"]) == (422, "bad_document")
    assert [each["code"] for each in told["error"]["problems"]] == ["E2", "E1"]


def test_a_body_that_is_no_submission_is_refused(service: ServiceClient) -> None:
    for body in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000):
        assert code_of(service.post("/v1/jobs", body)) == (400, "malformed")


def test_a_plan_is_made_and_nothing_is_submitted(service: ServiceClient) -> None:
    assert service.post("/v1/plan", SUBMISSION) == (200, {"job": "p", "packages": 1, "would_run": 1, "there": 0})
    assert service.jobs.submitted == []


def test_what_is_to_be_removed_is_asked_for_by_the_owner_of_the_document(service: ServiceClient) -> None:
    told = service.post("/v1/clean", {"submission": SUBMISSION, "remove": {"a": SHA256}})
    assert told == (200, {"job": "p", "folder": "/x", "removed": ["a"]})
    assert service.jobs.cleaned[0].submission.owner == "ann"
    of_ann = {"submission": SUBMISSION | {"owner": "ann"}}
    assert code_of(service.post("/v1/clean", of_ann, token="of-bob")) == (403, "forbidden")
    assert code_of(service.post("/v1/clean", b"{}")) == (400, "malformed")
    assert len(service.jobs.cleaned) == 1


def test_content_is_kept_by_its_checksum(service: ServiceClient) -> None:
    status, told = service.post("/v1/content", b"hello")
    assert status == 201
    assert service.services.journal.content(told["sha256"]) == b"hello"
    assert code_of(service.post("/v1/content", b"x", token="reads-only")) == (403, "forbidden")


def test_many_contents_are_kept_with_one_request_if_each_is_what_it_is_called(service: ServiceClient) -> None:
    files = {hashlib.sha256(each).hexdigest(): each for each in (b"hello", b"", b"a\nb")}
    body = b"".join(b"%b %d\n%b" % (sha256.encode(), len(data), data) for sha256, data in files.items())
    assert service.post("/v1/content/captured", body) == (200, {"stored": 3})
    assert [service.services.journal.content(sha256) for sha256 in files] == list(files.values())
    other = hashlib.sha256(b"other").hexdigest()
    assert code_of(service.post("/v1/content/captured", b"%b 5\nOther" % other.encode())) == (409, "wrong_content")
    assert service.services.journal.content(hashlib.sha256(b"Other").hexdigest()) is None
    assert code_of(service.post("/v1/content/captured", body[:-1])) == (400, "malformed")
    assert code_of(service.post("/v1/content/captured", body, token="reads-only")) == (403, "forbidden")


# --- steering ---------------------------------------------------------------------------------------------------------


def test_an_operation_reaches_the_engine_as_it_was_said(service: ServiceClient) -> None:
    service.register(1, "j")
    path = "/v1/jobs/j/operations"
    assert service.post(path, {"operation": "kill", "package": "1.1.1", "message": "no"}) == (
        200,
        {"operation": 1, "events": 1},
    )
    assert service.post(path, {"operation": "drop", "stage": 1, "line": 2})[0] == 200
    assert service.post(path, {"operation": "restart"})[0] == 200
    assert service.jobs.operations == [
        Kill(job="j", package="1.1.1", message="no"),
        Drop(job="j", stage=1, line=2),
        Restart(job="j"),
    ]


def test_a_line_is_dropped_with_its_files_and_the_answer_says_what_became_of_them(service: ServiceClient) -> None:
    service.register(1, "j")
    path, body = "/v1/jobs/j/operations", {"operation": "drop", "stage": 1, "line": 2}
    none = {"removed": 0, "removed_bytes": 0, "gone": 0, "removed_names": [], "kept_files": []}
    assert service.post(path, body)[1] == {"operation": 1, "events": 1, "files": none | {"kept": 2}}
    kept = KeptFile(name="b", reason="changed", message="it was changed")
    service.jobs.line_files = LineFiles(removed=1, removed_bytes=3, kept=1, removed_names=("a",), kept_files=(kept,))
    status, told = service.post(path, body | {"remove_files": True, "force": True})
    assert (status, told["files"]) == (200, msgspec.json.decode(msgspec.json.encode(service.jobs.line_files)))
    assert service.jobs.operations[-1] == Drop(job="j", stage=1, line=2, force=True, remove_files=True)
    assert service.jobs.dropped_by == ["ann", "ann"]
    asked = len(service.jobs.operations)
    for wrong in ({"by": "eve"}, {"fileless": ["1.2.1"]}, {"remove_files": "yes"}):
        assert code_of(service.post(path, body | wrong)) == (400, "malformed")
    assert code_of(service.post(path, body | {"operation": "drop-files"})) == (400, "malformed")
    assert code_of(service.post(path, body | {"remove_files": True}, token="of-bob"))[0] in (403, 404)
    assert len(service.jobs.operations) == asked


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"operation": "explode"},
        {"operation": "kill", "pakage": "1.1.1"},
        {"operation": "drop", "stage": "x", "line": 1},
        {"operation": "drop", "stage": 0, "line": 1},
        {"operation": "replicate"},
        [],
    ],
)
def test_what_is_no_operation_is_refused_and_nothing_is_done(service: ServiceClient, body: Any) -> None:
    service.register(1, "j")
    assert code_of(service.post("/v1/jobs/j/operations", body)) == (400, "malformed")
    assert service.jobs.operations == []


def test_what_the_engine_refuses_is_told_in_its_words(service: ServiceClient) -> None:
    service.register(1, "j")
    service.jobs.refusals["j"] = Refused(code="job-over", message="it is over", subject="j", next_step="restart it")
    service.jobs.refusals["9.9.9"] = Refused(code="unknown-package", message="no such package", subject="9.9.9")
    status, told = service.post("/v1/jobs/j/operations", {"operation": "kill"})
    assert (status, told["error"]["code"], told["error"]["hint"]) == (409, "job_over", "restart it")
    unknown = service.post("/v1/jobs/j/operations", {"operation": "kill", "package": "9.9.9"})
    assert code_of(unknown) == (404, "unknown_package")
    assert code_of(service.post("/v1/jobs/nix/operations", {"operation": "kill"})) == (404, "unknown_job")


def test_rights_on_a_job_decide_who_may_steer_it(service: ServiceClient) -> None:
    service.register(1, "j")
    path, kill, hold = "/v1/jobs/j/operations", {"operation": "kill"}, {"operation": "hold"}
    assert code_of(service.post(path, kill, token="of-bob")) == (404, "unknown_job")
    service.log(event(3, "AccessSet", {"rules": [{"principal": "bob", "rights": ["cancel"]}]}, job="j"))
    assert service.post(path, kill, token="of-bob")[0] == 200
    assert code_of(service.post(path, hold, token="of-bob")) == (403, "forbidden")
    assert code_of(service.post(path, kill, token="reads-only")) == (403, "forbidden")
    assert service.jobs.operations == [Kill(job="j")]


def test_an_operation_on_a_query_is_done_for_everything_it_finds(service: ServiceClient) -> None:
    service.register(1, "j")
    service.register(3, "k")
    service.jobs.refusals["1.1.2"] = Refused(code="package-over", message="1.1.2 is over", subject="1.1.2")
    status, told = service.post("/v1/operations", {"operation": "hold", "where": "job=j and state=WAITING"})
    assert (status, told["found"], told["done"], told["refused"]) == (200, 4, 3, 1)
    assert told["told"] == [{"subject": "j/1.1.2", "code": "package_over", "message": "1.1.2 is over"}]
    assert [each.job for each in service.jobs.operations] == ["j"] * 4
    status, told = service.post("/v1/operations", {"operation": "kill", "where": "owner=ann", "target": "jobs"})
    assert (told["found"], service.jobs.operations[4:]) == (2, [Kill(job="j"), Kill(job="k")])


def test_packages_of_one_job_are_found_by_naming_it(service: ServiceClient) -> None:
    service.register(1, "j")
    status, told = service.post("/v1/operations", {"operation": "replicate", "where": "activity=merge", "job": "j"})
    assert (status, told["done"]) == (200, 2)
    assert service.jobs.operations == [Replicate(job="j", package="1.1.2"), Replicate(job="j", package="1.2.2")]


def test_the_reason_for_which_what_a_query_finds_is_tried_elsewhere_is_handed_on(service: ServiceClient) -> None:
    service.register(1, "j")
    asked = {"operation": "reschedule", "where": "activity=merge", "job": "j", "message": "slow disk"}
    assert service.post("/v1/operations", asked)[0] == 200
    assert {each.message for each in service.jobs.operations if isinstance(each, Reschedule)} == {"slow disk"}


def test_a_line_is_dropped_once_however_many_of_its_packages_are_found(service: ServiceClient) -> None:
    service.register(1, "j")
    told = service.post("/v1/operations", {"operation": "drop", "where": "job=j"})[1]
    assert (told["found"], told["done"]) == (2, 2)
    assert service.jobs.operations == [Drop(job="j", stage=1, line=1), Drop(job="j", stage=1, line=2)]


def test_jobs_of_others_that_a_query_finds_are_left_alone(service: ServiceClient) -> None:
    service.register(1, "mine", owner="bob")
    service.register(3, "shared")
    service.log(event(5, "AccessSet", {"rules": [{"principal": "bob", "rights": ["read"]}]}, job="shared"))
    body = {"operation": "hold", "where": "all", "target": "jobs"}
    told = service.post("/v1/operations", body, token="of-bob")[1]
    assert (told["done"], [each["code"] for each in told["told"]]) == (1, ["forbidden"])
    assert service.jobs.operations == [Hold(job="mine")]


@pytest.mark.parametrize(
    "body, code",
    [
        ({"operation": "kill", "where": "nonsense=1"}, "bad_query"),
        ({"operation": "kill", "where": " "}, "malformed"),
        ({"operation": "drop", "where": "all", "target": "jobs"}, "malformed"),
        ({"operation": "kill", "where": "all", "target": "sites"}, "malformed"),
        ({"operation": "jump", "where": "all"}, "malformed"),
        ({"where": "all"}, "malformed"),
    ],
)
def test_an_operation_on_a_query_that_makes_no_sense_does_nothing(service: ServiceClient, body: Any, code: str) -> None:
    service.register(1, "j")
    assert code_of(service.post("/v1/operations", body)) == (400, code)
    assert service.jobs.operations == []


def test_clearing_is_recorded_once(service: ServiceClient) -> None:
    service.register(1, "j")
    assert service.post("/v1/jobs/j/clear", b"") == (200, {"job": "j"})
    assert service.jobs.cleared == ["j by user"]
    service.log(event(3, "Cleared", {"by": "user"}, job="j"))
    assert service.post("/v1/jobs/j/clear", b"")[0] == 200
    assert len(service.jobs.cleared) == 1
    assert code_of(service.post("/v1/jobs/j/clear", b"", token="of-bob")) == (404, "unknown_job")


def test_a_job_is_purged_when_it_is_cleared_and_nothing_of_it_is_under_way(service: ServiceClient) -> None:
    service.register(1, "j")
    purge = "/v1/jobs/j/purge"
    assert code_of(service.post(purge, b"")) == (409, "job_unfinished")
    service.log(event(3, "Cleared", {"by": "user"}, job="j"))
    assert code_of(service.post(purge, b"", token="of-bob")) == (404, "unknown_job")
    service.jobs.engine.state.jobs.by_id["j"] = cast("JobState", object())
    assert code_of(service.post(purge, b"")) == (409, "job_unfinished")
    del service.jobs.engine.state.jobs.by_id["j"]
    assert service.post(purge, b"") == (200, {"job": "j"})
    assert service.jobs.put_away[-1] == "j"
    assert code_of(service.get("/v1/jobs/j/packages")) == (410, "purged")


# --- results ----------------------------------------------------------------------------------------------------------


def test_logs_are_told_by_attempt_and_each_as_text(service: ServiceClient) -> None:
    a_bad_day(service)
    ref = AttemptRef("j", "1.1.1", 1)
    service.jobs.kept.kept = [
        LogText(ref=ref, stream="stdout", head="head", tail="tail", dropped_bytes=5),
        LogText(ref=AttemptRef("j", "1.1.1", 2), stream="stderr", head="oh"),
    ]
    path = "/v1/jobs/j/packages/1.1.1/logs"
    assert [each["head"] for each in service.get(path)[1]["logs"]] == ["head", "oh"]
    assert [each["head"] for each in service.get(f"{path}?attempt=2")[1]["logs"]] == ["oh"]
    assert service.get(f"{path}/2/stderr") == (200, "oh")
    assert service.get(f"{path}/1/stdout")[1] == "head\n[… 5 bytes are missing here …]\ntail"
    assert code_of(service.get(f"{path}/1/stderr")) == (404, "unknown_content")
    assert code_of(service.get(path, token="of-bob")) == (404, "unknown_job")


def test_the_output_object_of_a_package_is_that_of_gasw(service: ServiceClient) -> None:
    a_bad_day(service)
    service.jobs.kept.kept = [LogText(ref=AttemptRef("j", "1.1.1", 2), stream="stdout", head="äh")]
    told = service.get("/v1/jobs/j/packages/1.1.1/outputs")[1]
    assert (told["id"], told["exit_code"], told["folder"]) == ("j/1.1.1", "SUCCESS", str(service.folder))
    assert [each["name"] for each in told["outputs"]] == ["out/a.dat"]
    assert told["standard_output"] == {"url": "/v1/jobs/j/packages/1.1.1/logs/2/stdout", "size_bytes": 3}
    assert told["standard_error"] is None
    assert (told["application_output"], told["application_error"]) == (told["standard_output"], None)
    failed = service.get("/v1/jobs/j/packages/1.2.1/outputs")[1]
    assert (failed["exit_code"], failed["signal"], failed["outputs"]) == ("EXECUTION_FAILED", 9, [])
    assert (told["measured"], failed["measured"]) == ({}, {"peak_memory_bytes": 2**31})


def test_the_standard_output_has_that_of_the_scripts_and_the_application_has_its_own(service: ServiceClient) -> None:
    a_bad_day(service)
    ref = AttemptRef("j", "1.1.1", 2)
    texts = {"pre-stdout": "before\n", "stdout": "own\n", "post-stdout": "after\n", "post-stderr": "oh\n"}
    service.jobs.kept.kept = [LogText(ref=ref, stream=stream, head=text) for stream, text in texts.items()]
    told = service.get("/v1/jobs/j/packages/1.1.1/outputs")[1]
    logs = "/v1/jobs/j/packages/1.1.1/logs/2"
    assert told["standard_output"] == {"url": f"{logs}/standard-stdout", "size_bytes": 17}
    assert told["application_output"] == {"url": f"{logs}/stdout", "size_bytes": 4}
    assert service.get(told["standard_output"]["url"]) == (200, "before\nown\nafter\n")
    assert service.get(told["application_output"]["url"]) == (200, "own\n")
    assert told["standard_error"] == {"url": f"{logs}/standard-stderr", "size_bytes": 3}
    assert (service.get(told["standard_error"]["url"]), told["application_error"]) == ((200, "oh\n"), None)


def test_what_an_attempt_measured_is_told_with_it_with_its_output_and_on_its_card(service: ServiceClient) -> None:
    service.register(1, "j")
    measured = {
        "peak_memory_below_bytes": 2**24, "cpu_seconds": 1.75, "cpu_user_seconds": 1.5, "cpu_system_seconds": 0.25,
        "read_bytes": 512, "written_bytes": 1024,
    }  # fmt: skip
    phases = [{"phase": "cleaning", "started_at": 5.0, "seconds": 0.5}]
    about: dict[str, Any] = {"job": "j", "package": "1.1.1"}
    service.log(
        event(3, "AttemptCreated", {"site": "local", "lease_seconds": 60}, attempt=1, **about),
        event(
            4, "AttemptFinished", {"exit_code": "EXECUTION_FAILED", "phases": phases, **measured}, attempt=1, **about
        ),
        event(5, "Aborted", {"cause": "retries-exhausted"}, **about),
    )
    (attempt,) = service.get("/v1/jobs/j/packages/1.1.1")[1]["attempts"]
    assert {name: attempt[name] for name in measured} == measured
    assert attempt["phases"] == phases
    assert service.get("/v1/jobs/j/packages/1.1.1/outputs")[1]["measured"] == measured
    (group,) = service.get("/v1/jobs/j/progress")[1]["failures"]
    assert group["card"]["peak_memory_below_bytes"] == 2**24


def test_the_files_of_a_job_are_those_that_were_granted(service: ServiceClient) -> None:
    a_bad_day(service)
    told = service.get("/v1/jobs/j/outputs")[1]
    assert (told["folder"], told["next"]) == (str(service.folder), None)
    assert told["files"] == [{"name": "out/a.dat", "size_bytes": 3, "sha256": SHA256, "package": "1.1.1"}]


# --- the book beside ----------------------------------------------------------------------------------------------------


def logged(service: ServiceClient, *events: dict[str, Any]) -> list[tuple[int, str]]:
    answer = service.http.post("/v1/events", json={"events": events}, headers={"Authorization": f"Bearer {TOKEN}"})
    return [(each["index"], each["code"]) for each in answer.json()["refused"]]


def test_nobody_decides_beside_the_engine(service: ServiceClient) -> None:
    service.register(1, "j")
    theirs: dict[str, Any] = {"source": "client", "stream": "c"}
    about: dict[str, Any] = {"job": "j", "package": "1.1.1", "attempt": 1}
    forbidden = [
        event(50, "JobAccepted", job="j"),
        event(1, "AttemptFinished", {"exit_code": "SUCCESS"}, source="agent", stream="p.1", **about),
        event(1, "AttemptFinished", {"exit_code": "SUCCESS"}, **theirs, **about),
        event(2, "CancelAccepted", job="j", **theirs),
        event(3, "Aborted", {"cause": "quota"}, job="nobody-knows-it", **theirs),
        event(4, "JobRegistered", {"owner": "ann", "name": "x", "definition": SHA256}, job="x", **theirs),
        event(5, "PilotEnded", {"reason": "x"}, pilot="p.1", **theirs),
    ]
    assert logged(service, *forbidden) == [(number, "forbidden") for number in range(len(forbidden))]


def test_what_anybody_may_say_of_a_job_is_kept(service: ServiceClient) -> None:
    service.register(1, "j")
    tag = {"name": "study", "value": "A12"}
    assert logged(service, event(1, "Tagged", tag, job="j", source="application", stream="a")) == []
    assert service.get("/v1/jobs/j")[1]["tags"] == {"study": "A12"}


def test_a_job_of_another_scheduler_may_be_told_of_from_its_registration_on(service: ServiceClient) -> None:
    theirs: dict[str, Any] = {"source": "site", "stream": "s"}
    about: dict[str, Any] = {"job": "theirs", "package": "1.1.1", "attempt": 1}
    created = event(2, "AttemptStarted", {"node": "n"}, **theirs, **about)
    assert logged(service, registered(1, "theirs", **theirs), created) == []
    assert logged(service, event(3, "AttemptFinished", {"exit_code": "SUCCESS"}, **theirs, **about)) == []


def test_a_book_alone_runs_nothing_and_says_so(tmp_path: Path) -> None:
    with sqlite_journal(tmp_path) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
        with TestClient(FrameworkAnswers(services)) as client:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            for path in ("/v1/jobs", "/v1/jobs/j/operations", "/v1/operations", "/v1/content", "/v1/jobs/j/clear"):
                answer = client.post(path, content=b"{}")
                assert (answer.status_code, answer.json()["error"]["code"]) == (409, "book_only"), path
            assert client.post("/v1/events", json={"events": [registered(1, "j")]}).status_code == 200
            assert client.get("/v1/jobs/j/progress").json()["packages"] == 4


def test_what_costs_much_is_not_made_more_often_than_it_is_worth() -> None:
    now, made = [0.0], []

    def make() -> int:
        now[0] += 1.0
        made.append(now[0])
        return len(made)

    pace = AnswerCache(seconds=lambda: now[0])
    assert [pace.cached("a", mark, make) for mark in (1, 1, 2, 3)] == [1, 1, 1, 1]
    now[0] += 20.0
    assert pace.cached("a", 1, make) == 1  # nothing changed
    assert pace.cached("a", 4, make) == 2
    assert pace.cached("b", 4, make) == 3
