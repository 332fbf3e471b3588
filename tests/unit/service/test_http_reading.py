from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from pilotage.model.settings.settings import QuerySettings, Settings
from pilotage.ports import Journal
from pilotage.reading.access import READ, WRITE, Principal, local_principal
from pilotage.service.http.services import Services
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import TOKEN, WallClock, access_of, event, registered, sqlite_journal

PRINCIPALS = {
    TOKEN: local_principal("ann"),
    "of-bob": Principal(user="bob", groups=frozenset({"physics"}), scopes=frozenset({READ, WRITE})),
    "only-writes": Principal(user="eve", scopes=frozenset({WRITE})),
}
BOB = {"Authorization": "Bearer of-bob"}
SHA256 = "ab" * 32

Client = TestClient[FrameworkAnswers]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with sqlite_journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def client(journal: Journal) -> Iterator[Client]:
    settings = Settings(query=QuerySettings(page_rows=3, page_rows_max=5))
    services = Services(journal, access=access_of(PRINCIPALS), settings=settings, clock=WallClock())
    with TestClient(FrameworkAnswers(services), raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


def log(client: Client, *events: dict[str, Any]) -> None:
    answer = client.post("/v1/events", json={"events": events})
    assert answer.status_code == 200, answer.text


def get(client: Client, path: str, **more: Any) -> Any:
    answer = client.get(path, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: Client, path: str, **more: Any) -> tuple[int, str, str]:
    answer = client.get(path, **more)
    error = answer.json()["error"]
    return answer.status_code, error["code"], f"{error['message']} {error.get('hint', '')}"


def a_day_of_work(client: Client) -> None:
    """A job of four packages: one done, one failed once and running, two of which nothing was heard."""
    now = time.time()
    first: dict[str, Any] = {"job": "j", "package": "1.1.1"}
    second: dict[str, Any] = {"job": "j", "package": "1.2.1"}
    phases = [{"phase": "application", "started_at": 5.0, "seconds": 7.5}]
    manifest = [{"name": "out.root", "size_bytes": 9, "sha256": SHA256}]
    done = {"exit_code": "SUCCESS", "phases": phases, "manifest": manifest, "node": "wn1"}
    failed = {"exit_code": "EXECUTION_FAILED", "exit_message": "segfault", "reason": "crash", "signal": 11}
    log(
        client,
        registered(1, "j"),
        event(2, "JobAccepted", job="j"),
        event(3, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, time=now, attempt=1, **first),
        event(4, "AttemptFinished", done, time=now, attempt=1, **first),
        event(5, "CommitGranted", time=now, attempt=1, **first),
        event(6, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, time=now, attempt=1, **second),
        event(7, "AttemptFinished", failed, time=now, attempt=1, **second),
        event(8, "AttemptCreated", {"site": "cern", "lease_seconds": 60, "replaces": 1}, time=now, attempt=2, **second),
        event(9, "Tagged", {"name": "study", "value": "A12"}, **second),
        event(10, "Tagged", {"name": "study", "value": "A12"}, job="j"),
    )


def test_a_job_counts_every_package_heard_of_or_not(client: Client) -> None:
    a_day_of_work(client)
    job = get(client, "/v1/jobs/j")
    assert (job["id"], job["name"], job["owner"], job["state"]) == ("j", "name-j", "ann", "RUNNING")
    assert (job["packages"], job["failed"], job["held"], job["cancelled_at"]) == (4, 0, False, None)
    counts = {name: count for name, count in job["counts"].items() if count}
    assert counts == {"done": 1, "running": 1, "waiting": 2}
    assert job["tags"] == {"study": "A12"}
    assert job["url"].endswith("/v1/jobs/j")


def test_a_stage_has_a_state_and_counts_of_its_own(client: Client) -> None:
    a_day_of_work(client)
    (stage,) = get(client, "/v1/jobs/j/stages")["stages"]
    assert (stage["stage"], stage["state"], stage["packages"]) == (1, "RUNNING", 4)
    assert get(client, "/v1/jobs/j/stages?after=1") == {"stages": [], "more": False}


def test_a_line_has_a_state_and_counts_of_its_own(client: Client) -> None:
    a_day_of_work(client)
    line = get(client, "/v1/jobs/j/lines/1.1")
    assert (line["stage"], line["line"], line["state"], line["packages"]) == (1, 1, "RUNNING", 2)
    assert (line["counts"]["done"], line["counts"]["waiting"]) == (1, 1)
    for wrong in ("1.9", "1", "x", "9.1"):
        assert client.get(f"/v1/jobs/j/lines/{wrong}").status_code == 404


def test_the_packages_of_a_job_are_all_there_in_order_page_by_page(client: Client) -> None:
    a_day_of_work(client)
    page = get(client, "/v1/jobs/j/packages")
    assert [(each["id"], each["state"], each["heard"]) for each in page["packages"]] == [
        ("1.1.1", "DONE", True),
        ("1.1.2", "WAITING", False),
        ("1.2.1", "RUNNING", True),
    ]
    assert page["packages"][1]["path"] == "name-j/001/001/002"
    assert page["packages"][1]["activity"] == "merge"
    page = get(client, f"/v1/jobs/j/packages?cursor={page['next']}")
    assert ([each["id"] for each in page["packages"]], page["next"]) == (["1.2.2"], None)


@pytest.mark.parametrize(
    "query, found",
    [
        ("state=WAITING", ["1.1.2", "1.2.2"]),
        ("state=RUNNING or state=DONE", ["1.1.1", "1.2.1"]),
        ("activity=merge", ["1.1.2", "1.2.2"]),
        ("activity=reco", ["1.1.1", "1.2.1"]),
        ("tag.study=A12", ["1.2.1"]),
        ("attempts>1", ["1.2.1"]),
        ("attempts<1", ["1.1.2", "1.2.2"]),
        ("site=lyon", ["1.1.1"]),
        ("site!=lyon and state!=RUNNING", ["1.1.2", "1.2.2"]),
        ("package=1.2.2", ["1.2.2"]),
        ("exit_code=SUCCESS", ["1.1.1"]),
        ("state=CLEARED", []),
    ],
)
def test_a_query_over_a_job_finds_packages_of_which_nothing_was_heard_too(
    client: Client, query: str, found: list[str]
) -> None:
    a_day_of_work(client)
    page = get(client, "/v1/jobs/j/packages", params={"query": query})
    assert ([each["id"] for each in page["packages"]], page["next"]) == (found, None)


def test_a_package_shows_every_attempt_with_phases_and_manifest(client: Client) -> None:
    a_day_of_work(client)
    done = get(client, "/v1/jobs/j/packages/1.1.1")
    (attempt,) = done["attempts"]
    assert done["package"]["exit_code"] == "SUCCESS"
    assert (attempt["granted"], attempt["node"]) == (True, "wn1")
    assert attempt["phases"] == [{"phase": "application", "started_at": 5.0, "seconds": 7.5}]
    made = {"name": "out.root", "size_bytes": 9, "sha256": SHA256}
    assert attempt["manifest"] == [{**made, "direction": "out", "origin": "", "source": ""}]
    running = get(client, "/v1/jobs/j/packages/1.2.1")
    assert [(each["attempt"], each["site"], each["exit_code"]) for each in running["attempts"]] == [
        (1, "lyon", "EXECUTION_FAILED"),
        (2, "cern", None),
    ]
    assert (running["attempts"][0]["reason"], running["attempts"][0]["signal"]) == ("crash", 11)
    assert running["package"]["tags"] == {"study": "A12"}


def test_a_package_of_which_nothing_was_heard_exists(client: Client) -> None:
    a_day_of_work(client)
    unheard = get(client, "/v1/jobs/j/packages/1.2.2")
    assert (unheard["package"]["state"], unheard["package"]["heard"], unheard["attempts"]) == ("WAITING", False, [])
    assert unheard["package"]["entered_at"] == get(client, "/v1/jobs/j")["accepted_at"]


def test_what_does_not_exist_is_said_to_be_unknown(client: Client) -> None:
    a_day_of_work(client)
    log(client, registered(11, "simulation-2024-11"))
    assert refused(client, "/v1/jobs/nothing-like-it")[:2] == (404, "unknown_job")
    assert "did you mean simulation-2024-11" in refused(client, "/v1/jobs/simulation-2024-1l")[2]
    assert "did you mean j?" in refused(client, "/v1/jobs/name-j")[2]
    assert refused(client, "/v1/jobs/j/packages/1.9.1")[:2] == (404, "unknown_package")
    assert refused(client, "/v1/jobs/j/packages/one")[:2] == (404, "unknown_package")
    assert refused(client, "/v1/jobs/j/packages/2.1.1")[:2] == (404, "unknown_package")
    assert refused(client, "/v1/jobs/j/packages/2.1.1/events")[:2] == (404, "unknown_package")
    assert refused(client, "/v1/nowhere")[:2] == (404, "not_found")


def test_a_purged_job_is_gone_and_says_when(client: Client, journal: Journal) -> None:
    log(client, registered(1, "j"), event(2, "CancelAccepted", job="j"))
    journal.purge("j", at=1_700_000_000.0)
    status, code, text = refused(client, "/v1/jobs/j")
    assert (status, code) == (410, "purged")
    assert "2023-11-14 22:13 UTC" in text
    assert client.get("/v1/jobs/j/packages/1.1.1").json()["error"]["purged_at"] == 1_700_000_000.0


def test_a_sealed_job_answers_as_before(client: Client, journal: Journal) -> None:
    a_day_of_work(client)
    log(client, event(11, "CancelAccepted", job="j"), event(12, "CancelAccepted", job="j", package="1.2.1"))
    paths = [
        "/v1/jobs/j/packages?limit=5",
        "/v1/jobs/j/packages/1.1.1",
        "/v1/jobs/j/events?limit=5",
        "/v1/jobs/j/stages",
    ]
    before = [get(client, path) for path in paths]
    journal.seal("j")
    assert get(client, "/v1/jobs/j")["place"] == "sealed"
    assert [get(client, path) for path in paths] == before


def test_jobs_are_listed_by_query_and_cursor(client: Client) -> None:
    log(client, *[registered(n, f"job-{n}", owner="ann" if n % 2 else "bob") for n in range(1, 8)])
    page = get(client, "/v1/jobs?query=owner%3Dann")
    assert [each["id"] for each in page["jobs"]] == ["job-1", "job-3", "job-5"]
    page = get(client, "/v1/jobs", params={"query": "owner=ann", "cursor": page["next"]})
    assert ([each["id"] for each in page["jobs"]], page["next"]) == (["job-7"], None)
    assert len(get(client, "/v1/jobs?limit=100")["jobs"]) == 5
    assert get(client, "/v1/counts/jobs?query=owner%3Dann") == {"count": 4}
    assert get(client, "/v1/counts/jobs") == {"count": 7}


def test_packages_and_events_are_found_across_jobs(client: Client) -> None:
    a_day_of_work(client)
    log(client, registered(20, "k"), event(21, "Held", {"operation": 1}, job="k", package="1.1.1"))
    found = get(client, "/v1/packages?query=owner%3Dann")
    assert [(each["job"], each["id"]) for each in found["packages"]] == [("j", "1.1.1"), ("j", "1.2.1"), ("k", "1.1.1")]
    assert found["packages"][2]["path"] == "name-k/001/001/001"
    events = get(client, "/v1/events", params={"query": "position>8", "limit": 2})
    assert [each["position"] for each in events["events"]] == [9, 10]
    events = get(client, "/v1/events", params={"query": "position>8", "limit": 2, "cursor": events["next"]})
    assert ([each["type"] for each in events["events"]], events["next"]) == (["JobRegistered", "Held"], None)
    assert get(client, "/v1/counts/packages?query=owner%3Dann") == {"count": 3, "sealed_jobs": 0}


def test_a_query_that_names_one_job_tells_of_packages_that_nothing_was_heard_of(client: Client) -> None:
    a_day_of_work(client)
    log(client, registered(20, "k"), registered(21, "of-bob", owner="bob"))
    found = get(client, "/v1/packages", params={"query": "job=j and state=WAITING"})
    assert [(each["id"], each["heard"]) for each in found["packages"]] == [("1.1.2", False), ("1.2.2", False)]
    first = get(client, "/v1/packages", params={"query": "job=j"})
    rest = get(client, "/v1/packages", params={"query": "job=j", "cursor": first["next"]})
    listed = [each["id"] for page in (first, rest) for each in page["packages"]]
    assert (listed, rest["next"]) == (["1.1.1", "1.1.2", "1.2.1", "1.2.2"], None)
    for path, count in (
        ("/v1/counts/packages?query=job%3Dj", 4),
        ("/v1/counts/packages?query=job%3Dj%20and%20state%3DWAITING", 2),
        ("/v1/counts/packages?job=j&query=state%3DWAITING", 2),
        ("/v1/counts/packages?job=j", 4),
        ("/v1/counts/packages?query=job%3Dnobody", 0),
    ):
        assert get(client, path) == {"count": count, "sealed_jobs": 0}, path
    # Of a job of somebody else nothing is told.
    assert get(client, "/v1/packages?query=job%3Dj", headers=BOB)["packages"] == []
    assert get(client, "/v1/counts/packages?query=job%3Dj", headers=BOB)["count"] == 0
    assert len(get(client, "/v1/packages?query=job%3Dof-bob&limit=9", headers=BOB)["packages"]) == 4


def test_a_job_has_an_end_only_when_it_is_over(client: Client) -> None:
    now = time.time()
    log(client, registered(1, "j"), event(2, "JobAccepted", job="j"))
    about: dict[str, Any] = {"job": "j", "package": "1.1.1", "attempt": 1, "time": now}
    log(
        client,
        event(3, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, **about),
        event(4, "AttemptFinished", {"exit_code": "SUCCESS", "node": "wn1"}, **about),
        event(5, "CommitGranted", **about),
    )
    job = get(client, "/v1/jobs/j")
    assert (job["state"], job["counts"]["done"], job["finished_at"]) == ("RUNNING", 1, None)
    log(client, event(6, "CancelAccepted", job="j", time=now + 5))
    job = get(client, "/v1/jobs/j")
    assert (job["state"], job["finished_at"]) == ("CANCELLED", now)


def test_a_query_that_names_no_job_says_how_many_sealed_ones_it_left_out(client: Client, journal: Journal) -> None:
    log(client, registered(1, "j"), event(2, "CancelAccepted", job="j"), registered(3, "k"))
    assert get(client, "/v1/packages?query=owner%3Dann")["sealed_jobs"] == 0
    journal.seal("j")
    for query, left_out in (("owner=ann", 1), ("job!=k and owner=ann", 1), ("job=k", 0), ("job in (j, k)", 0)):
        assert get(client, "/v1/packages", params={"query": query})["sealed_jobs"] == left_out, query
        assert get(client, "/v1/counts/packages", params={"query": query})["sealed_jobs"] == left_out, query
    assert get(client, "/v1/counts/packages?job=j") == {"count": 4, "sealed_jobs": 0}
    assert get(client, "/v1/jobs/j/packages")["sealed_jobs"] == 0


def test_events_of_a_job_and_of_a_package_come_as_they_were_sent(client: Client) -> None:
    a_day_of_work(client)
    page = get(client, "/v1/jobs/j/events?limit=2")
    assert ([each["position"] for each in page["events"]], page["after"], page["more"]) == ([1, 2], 2, True)
    page = get(client, "/v1/jobs/j/packages/1.2.1/events?after=6&limit=5")
    assert [each["type"] for each in page["events"]] == ["AttemptFinished", "AttemptCreated", "Tagged"]
    assert page["more"] is False
    sent = page["events"][2]
    assert (sent["job"], sent["package"], sent["attempt"]) == ("j", "1.2.1", None)
    assert (sent["source"], sent["stream"], sent["n"], sent["data"]) == (
        "service",
        "test",
        9,
        {"name": "study", "value": "A12"},
    )
    assert get(client, "/v1/jobs/j/events", params={"query": "type=Tagged"})["events"][0]["n"] == 9


@pytest.mark.parametrize(
    "path, status, code",
    [
        ("/v1/packages", 422, "too_broad"),
        ("/v1/events", 422, "too_broad"),
        ("/v1/jobs?query=stat%3DRUNNING", 400, "bad_query"),
        ("/v1/jobs?cursor=nonsense", 400, "bad_cursor"),
        ("/v1/jobs?querry=x", 400, "bad_parameter"),
        ("/v1/jobs?limit=x", 400, "bad_parameter"),
        ("/v1/jobs?limit=1&limit=2", 400, "bad_parameter"),
        ("/v1/jobs/j/events?wait_seconds=61", 400, "bad_parameter"),
        ("/v1/jobs/j/events?after=-1", 400, "bad_parameter"),
        ("/v1/statistics?window=2h", 400, "bad_parameter"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(client: Client, path: str, status: int, code: str) -> None:
    log(client, registered(1, "j"))
    assert refused(client, path)[:2] == (status, code)


def test_a_cursor_of_another_query_is_refused(client: Client) -> None:
    log(client, *[registered(n, f"job-{n}") for n in range(1, 6)])
    cursor = get(client, "/v1/jobs")["next"]
    assert refused(client, f"/v1/jobs?query=owner%3Dann&cursor={cursor}")[:2] == (400, "bad_cursor")


def test_others_jobs_are_unknown_and_left_out_of_lists(client: Client) -> None:
    rules = [{"principal": "group:physics", "rights": ["read"]}]
    log(
        client,
        *[registered(n, f"ann-{n}") for n in range(1, 30)],
        registered(30, "bob-1", owner="bob"),
        event(31, "AccessSet", {"rules": rules}, job="ann-29"),
        event(32, "Held", {"operation": 1}, job="ann-1", package="1.1.1"),
        event(33, "Held", {"operation": 1}, job="ann-29", package="1.1.1"),
        event(34, "SiteDescribed", {"kind": "slurm"}, site="lyon"),
    )
    assert refused(client, "/v1/jobs/ann-1", headers=BOB)[:2] == (404, "unknown_job")
    assert refused(client, "/v1/jobs/ann-1/events", headers=BOB)[:2] == (404, "unknown_job")
    assert get(client, "/v1/jobs/ann-29", headers=BOB)["access"] == rules
    page = get(client, "/v1/jobs", headers=BOB)
    assert ([each["id"] for each in page["jobs"]], page["next"]) == (["ann-29", "bob-1"], None)
    page = get(client, "/v1/packages", params={"query": "job in (ann-1, ann-29)"}, headers=BOB)
    assert [each["job"] for each in page["packages"]] == ["ann-29"]
    page = get(client, "/v1/events", params={"query": "position>31"}, headers=BOB)
    assert [each["position"] for each in page["events"]] == [33, 34]
    assert get(client, "/v1/counts/jobs", headers=BOB) == {"count": 1}


def test_reading_needs_the_scope_to_read(client: Client) -> None:
    eve = {"Authorization": "Bearer only-writes"}
    for path in ("jobs", "jobs/j", "packages", "events", "position", "statistics", "pilots", "nodes", "sites"):
        assert refused(client, f"/v1/{path}", headers=eve)[:2] == (403, "forbidden"), path


def test_without_a_token_only_health_and_the_document_are_told(client: Client) -> None:
    nobody = {"Authorization": ""}
    document = get(client, "/schema", headers=nobody)
    assert get(client, "/healthz", headers=nobody)["status"] == "ok"
    operations = [(method, path) for path, each in document["paths"].items() for method in each if path != "/healthz"]
    assert len(operations) > 16
    for method, path in operations:
        answer = client.request(method, re.sub(r"\{[a-z]+\}", "j", path), headers=nobody)
        assert answer.status_code == 401, (method, path)
        assert method == "head" or answer.json()["error"]["code"] == "unauthenticated", (method, path)


def test_an_unchanged_job_is_not_sent_again(client: Client) -> None:
    log(client, registered(1, "j"))
    tag = client.get("/v1/jobs/j").headers["etag"]
    unchanged = client.get("/v1/jobs/j", headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    log(client, event(2, "JobAccepted", job="j"))
    assert client.get("/v1/jobs/j", headers={"If-None-Match": tag}).json()["state"] == "WAITING"


def test_statistics_name_no_activities_of_jobs_that_one_may_not_read(client: Client) -> None:
    a_day_of_work(client)
    assert {flow["activity"] for flow in get(client, "/v1/statistics?window=1d")["flows"]} >= {"reco"}
    assert get(client, "/v1/statistics?window=1d", headers=BOB)["flows"] == []
    assert get(client, "/v1/statistics?window=1d&activity=reco", headers=BOB)["flows"] == []
    rules = [{"principal": "bob", "rights": ["read"]}]
    log(client, event(900, "AccessSet", {"rules": rules}, job="j"))
    assert get(client, "/v1/statistics?window=1d", headers=BOB) == get(client, "/v1/statistics?window=1d")


def test_sites_pilots_nodes_and_statistics_are_there(client: Client) -> None:
    a_day_of_work(client)
    log(
        client,
        event(20, "SiteDescribed", {"kind": "slurm", "status": "good"}, site="lyon"),
        *[event(20 + n, "PilotStarted", {"site": "lyon"}, pilot=f"pilot-{n}") for n in (1, 2, 3, 4)],
        event(25, "PilotEnded", {"reason": "walltime", "stderr": "killed"}, pilot="pilot-1"),
        event(26, "NodeDescribed", {"node": "wn1", "software": {"root": "6"}, "cpu_model": "Xeon"}, pilot="pilot-1"),
    )
    assert get(client, "/v1/sites")["sites"][0]["status"] == "good"
    page = get(client, "/v1/pilots")
    assert ([each["pilot"] for each in page["pilots"]], page["next"]) == (["pilot-1", "pilot-2", "pilot-3"], "pilot-3")
    assert page["pilots"][0]["stderr"] == "killed"
    assert get(client, "/v1/pilots?after=pilot-3")["next"] is None
    (node,) = get(client, "/v1/nodes")["nodes"]
    assert (node["software"], node["cpu_model"], node["kernel"]) == ({"root": "6"}, "Xeon", "")
    flows = get(client, "/v1/statistics?window=1d")["flows"]
    assert {(each["site"], each["activity"]) for each in flows} == {("lyon", "reco"), ("cern", "reco")}
    (flow,) = get(client, "/v1/statistics?window=1d&site=lyon&activity=reco")["flows"]
    assert flow["entries"]["DONE"] == 1
    assert get(client, "/v1/position")["position"] == 17


def test_a_package_has_the_offset_of_its_node_from_utc_and_an_explanation_its_actual_times(client: Client) -> None:
    a_day_of_work(client)
    about = {"job": "j", "package": "1.2.2", "attempt": 1}
    log(
        client,
        event(11, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, **about),
        event(12, "AttemptStarted", {"node": "wn1"}, **about),
    )
    path = "/v1/jobs/j/packages/1.2.2"
    assert get(client, path)["utc_offset"] == ""
    for n, offset, said in ((20, "+05:30", "+05:30"), (21, "summer", "")):
        log(client, event(n, "NodeDescribed", {"node": "wn1", "environment": {"utc_offset": offset}}, pilot="p"))
        assert get(client, path)["utc_offset"] == said
    explained = get(client, f"{path}/explain")
    assert (explained["started_at"], explained["ended_at"]) == (get(client, path)["package"]["running_at"], None)


def test_until_an_attempt_ends_its_node_is_that_of_its_pilot(client: Client) -> None:
    a_day_of_work(client)
    about = {"job": "j", "package": "1.2.2", "attempt": 1}
    log(
        client,
        event(11, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, **about),
        event(12, "AttemptStarted", {"pilot": "p"}, **about),
        event(13, "PilotStarted", {"site": "lyon", "node": "wn2"}, pilot="p"),
        event(14, "NodeDescribed", {"node": "wn2", "environment": {"utc_offset": "+05:30"}}, pilot="p"),
    )
    assert get(client, "/v1/jobs/j/packages/1.2.2")["utc_offset"] == "+05:30"


def test_a_method_that_is_not_possible_names_those_that_are(client: Client) -> None:
    answer = client.delete("/v1/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("host", ["h:abc", "h:99999", "h:-1"])
def test_a_host_that_is_none_is_the_fault_of_who_asks(client: Client, host: str) -> None:
    a_day_of_work(client)
    assert refused(client, "/v1/jobs", headers={"Host": host})[:2] == (400, "bad_request")


def test_the_record_of_each_binary_is_told_in_lists_and_explanations(client: Client) -> None:
    a_day_of_work(client)
    binaries = [
        {"number": 1, "name": "gen", "started_at": 5.0, "seconds": 1.5, "exit_status": 0},
        {"number": 2, "started_at": 6.5, "seconds": 9.0, "signal": 11, "reason": "crash"},
    ]
    about = {"job": "j", "package": "1.2.2", "attempt": 1}
    failed = {"exit_code": "EXECUTION_FAILED", "reason": "crash", "binaries": binaries}
    again = {"site": "lyon", "lease_seconds": 60, "replaces": 1}
    log(
        client,
        event(11, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, **about),
        event(12, "AttemptFinished", failed, **about),
    )
    empty = {"name": None, "exit_status": None, "signal": None, "reason": None}
    told = [{**empty, **each} for each in binaries]
    path = "/v1/jobs/j/packages"
    query = {"query": "job=j and package in (1.1.1, 1.2.2)", "binaries": "1"}
    for page in (path, "/v1/packages"):
        assert [each["binaries"] for each in get(client, page, params=query)["packages"]] == [[], told]
        assert get(client, page, params={"query": "job=j and package=1.2.2"})["packages"][0]["binaries"] is None
    assert get(client, f"{path}/1.2.2")["package"]["binaries"] == told
    log(client, event(13, "AttemptCreated", again, **{**about, "attempt": 2}))
    # What runs now has told nothing of its binaries; why it runs again is in those of the attempt before.
    assert get(client, path, params=query)["packages"][1]["binaries"] == []
    explained = get(client, f"{path}/1.2.2/explain")
    assert explained["ended"] == 1
    assert [(each["number"], each.get("signal")) for each in explained["binaries"]] == [(1, None), (2, 11)]
    assert get(client, f"{path}/1.1.1/explain")["binaries"] == []
