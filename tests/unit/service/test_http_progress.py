"""How far a job is and why a package is where it is, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotage.model.events.payloads import JobAccepted
from pilotage.service.errors import Unpublished, for_many
from pilotage.service.http.services import AnswerCache
from tests.kit.served_book import event
from tests.kit.service_clients import ServiceClient, a_bad_day, code_of, service_client_in
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, registered_of, site

WAIT_SECONDS = 20.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    with service_client_in(tmp_path) as made:
        made.services.answer_cache = AnswerCache(
            seconds=lambda: 0.0
        )  # nothing costs so much that it is told a moment late
        yield made


def test_progress_counts_and_groups_failures_by_their_cause(service: ServiceClient) -> None:
    a_bad_day(service)
    status, told = service.get("/v1/jobs/j/progress")
    assert status == 200
    assert {name: told[name] for name in ("packages", "done", "failed", "healed")} == {
        "packages": 4, "done": 1, "failed": 2, "healed": 1,
    }  # fmt: skip
    (stage,) = told["stages"]
    assert (stage["name"], stage["packages"], stage["done"], stage["failed"]) == ("merge + reco", 4, 1, 2)
    card, in_vain = (group["card"] for group in told["failures"])
    assert (card["package"], card["cause"], card["reason"], card["signal"]) == (
        "1.2.1", "retries-exhausted", "out-of-memory", 9,
    )  # fmt: skip
    assert (card["peak_memory_bytes"], card["node"], card["next_step"]) == (2**31, "wn1", "pilotage logs j/1.2.1")
    assert (in_vain["cause"], in_vain["next_step"]) == ("upstream", "pilotage status j/1.2.1")


def test_progress_says_what_is_done_and_not_under_its_name_yet(service: ServiceClient) -> None:
    service.register(1, "j")
    service.jobs.waits_to_publish = 2
    assert service.get("/v1/jobs/j/progress")[1]["unpublished"] == 2


def test_progress_says_why_files_get_no_names_and_that_a_release_goes_on(service: ServiceClient) -> None:
    service.register(1, "j")
    service.jobs.cannot_publish = Unpublished(
        package="1.1.1", attempt=2, what="the outputs of 1.1.1 cannot be published: no room", next_step="make room"
    )
    told = service.get("/v1/jobs/j/progress")[1]
    assert "stuck" not in told  # others of it can move
    (group,) = told["failures"]
    assert (group["count"], group["card"]) == (
        1,
        {
            "package": "1.1.1",
            "path": "name-j/001/001/001",
            "attempt": 2,
            "reason": "not-published",
            "exit_message": "the outputs of 1.1.1 cannot be published: no room",
            "next_step": "make room; then: pilotage release j",
        },
    )
    service.log(event(3, "CancelAccepted", job="j"))
    told = service.get("/v1/jobs/j/progress")[1]
    assert told["stuck"] == "the outputs of 1.1.1 cannot be published: no room"
    assert told["next_step"] == "make room; then: pilotage release j"


def dead_starts(service: ServiceClient, *words: str) -> None:
    """Pilots that end one after the other before they speak, and a job that waits for one."""
    service.register(1, "j")
    for number, each in enumerate(words, 1):
        ended = {"reason": "exited", "stderr": each}
        service.log(
            event(10 * number, "PilotRequested", {"site": "local"}, pilot=f"local-{number}"),
            event(10 * number + 1, "PilotEnded", ended, pilot=f"local-{number}"),
        )
    engine = service.jobs.engine
    engine.state.sites.by_name["local"].answers = False
    made = bag(1)
    engine.bring_plan("j", made)
    engine.state.log.write(registered_of(made, owner="ann"), name="j")
    engine.state.log.write(JobAccepted(), job=engine.state.jobs.by_id["j"])


def test_a_pilot_that_cannot_start_is_told_with_its_last_words(service: ServiceClient) -> None:
    dead_starts(service, "python3:\nno such file")
    told = service.get("/v1/jobs/j/progress")[1]
    assert told["trouble"] == "site local does not answer; the last one printed: python3: / no such file"


def test_of_many_pilots_that_could_not_start_the_last_one_is_told(
    service: ServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.service.http.progress.PILOTS_LOOKED_AT", 2)
    dead_starts(service, "one", "two", "three")
    assert service.get("/v1/jobs/j/progress")[1]["trouble"].endswith("the last one printed: three")


def test_a_package_that_the_engine_does_not_have_is_explained_by_the_book(service: ServiceClient) -> None:
    a_bad_day(service)
    status, told = service.get("/v1/jobs/j/packages/1.2.1/explain")
    assert (status, told["standing"]) == (200, "aborted")
    assert [why["message"] for why in told["reasons"]] == [
        "it was given up: retries-exhausted (3 of 3)",
        "attempt 1 failed at local: out-of-memory: it was killed",
    ]
    assert code_of(service.get("/v1/jobs/j/packages/9.9.9/explain")) == (404, "unknown_package")


def test_a_package_that_never_began_is_explained_by_its_own_state_and_not_by_that_of_its_job(
    service: ServiceClient,
) -> None:
    service.register(1, "j")
    about: dict[str, Any] = {"job": "j", "package": "1.1.1"}
    service.log(event(3, "AttemptCreated", {"site": "local", "lease_seconds": 60}, attempt=1, **about))
    assert service.get("/v1/jobs/j")[1]["state"] == "RUNNING"
    for path in ("explain", "outputs"):
        told = service.get(f"/v1/jobs/j/packages/1.2.1/{path}")[1]
        assert told.get("standing", told.get("state")).upper() == "WAITING"


def test_what_was_stopped_for_one_cause_is_one_group_however_it_ended(service: ServiceClient) -> None:
    service.register(1, "j")
    n = 3
    for package, ended in (("1.1.1", {"signal": 15}), ("1.2.1", {"signal": 9}), ("1.1.2", {"exit_status": 0})):
        n = attempt(
            service, n, package, 1, "AttemptFinished", exit_code="EXECUTION_FAILED", reason="wall-time", **ended
        )
        service.log(event(n, "Aborted", {"cause": "retries-exhausted"}, job="j", package=package))
        n += 1
    assert [group["count"] for group in service.get("/v1/jobs/j/progress")[1]["failures"]] == [3]


# --- counts -----------------------------------------------------------------------------------------------------------


def attempt(service: ServiceClient, n: int, package: str, number: int, *ends: str, **told: Any) -> int:
    """Log an attempt of a package and what became of it; the number for the next event."""
    about: dict[str, Any] = {"job": "j", "package": package, "attempt": number}
    begun = {"site": "local", "lease_seconds": 60} | ({"replaces": number - 1} if number > 1 else {})
    payloads = {"AttemptCreated": begun, "AttemptFinished": told, "AttemptLost": told}
    kinds = ("AttemptCreated", *ends)
    service.log(*(event(n + place, kind, payloads.get(kind), **about) for place, kind in enumerate(kinds)))
    return n + len(kinds)


def counted(service: ServiceClient, *names: str) -> list[int]:
    told = service.get("/v1/jobs/j/progress")[1]
    return [told.get(name, 0) for name in names]


STOPPED = {"exit_code": "EXECUTION_CANCELED", "reason": "preempted", "exit_message": "its pilot had to end"}


def test_a_package_that_was_only_stopped_and_goes_on_is_neither_retried_nor_healed(service: ServiceClient) -> None:
    service.register(1, "j")
    n = attempt(service, 3, "1.1.1", 1, "AttemptFinished", **STOPPED)
    n = attempt(service, n, "1.2.1", 1, "AttemptFinished", exit_code="EXECUTION_FAILED", reason="signal")
    assert counted(service, "retrying", "healed") == [1, 0]
    n = attempt(service, n, "1.1.1", 2, "AttemptFinished", "CommitGranted", exit_code="SUCCESS", manifest=[])
    n = attempt(service, n, "1.2.1", 2)
    assert counted(service, "retrying", "healed", "done") == [1, 0, 1]
    n = attempt(service, n, "1.1.2", 1, "AttemptLost", reason="unheard")
    n = attempt(service, n, "1.1.2", 2, "AttemptFinished", "CommitGranted", exit_code="SUCCESS", manifest=[])
    n = attempt(service, n, "1.2.2", 1, "AttemptLost", reason="rescheduled")
    attempt(service, n, "1.2.2", 2, "AttemptFinished", "CommitGranted", exit_code="SUCCESS", manifest=[])
    assert counted(service, "retrying", "healed", "done") == [1, 1, 3]


def test_what_turned_out_to_be_there_when_it_was_given_to_an_agent_counts_as_adopted(service: ServiceClient) -> None:
    service.register(1, "j")
    ends = ("AttemptFinished", "CommitGranted")
    n = attempt(service, 3, "1.1.1", 1, *ends, exit_code="SUCCESS", manifest=[])
    attempt(service, n, "1.1.2", 1, *ends, exit_code="SUCCESS", reason="made-before", manifest=[])
    assert counted(service, "done", "adopted", "failed") == [2, 1, 0]


def test_a_result_is_stale_from_the_moment_at_which_its_inputs_are_told_to_be_made_again_until_they_are_as_before(
    service: ServiceClient,
) -> None:
    service.register(1, "j")
    ends = ("AttemptFinished", "CommitGranted")
    n = attempt(service, 3, "1.2.1", 1, *ends, exit_code="SUCCESS", manifest=[])
    n = attempt(service, n, "1.1.1", 1, "AttemptLost", reason="unheard")
    n = attempt(service, n, "1.1.1", 2, *ends, exit_code="SUCCESS", manifest=[])
    assert counted(service, "done", "stale") == [2, 0]
    remade = {"granted": 1, "files": [{"name": "a.txt", "read_sha256": "0" * 64, "sha256": "1" * 64}]}
    service.log(event(n, "InputsRemade", remade, job="j", package="1.2.1"))
    assert counted(service, "done", "stale") == [2, 1]
    service.log(event(n + 1, "InputsRemade", {"granted": 1}, job="j", package="1.2.1"))
    assert counted(service, "done", "stale") == [2, 0]


def test_packages_are_looked_through_again_only_where_something_unusual_was_told(
    service: ServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    count = service.services.reader.count_packages

    def counting(principal: Any, text: str, *, job: Any) -> int:
        asked.append(text)
        return count(principal, text, job=job)

    monkeypatch.setattr(service.services.reader, "count_packages", counting)
    service.register(1, "j")
    ends = ("AttemptFinished", "CommitGranted")
    n = attempt(service, 3, "1.1.1", 1, *ends, exit_code="SUCCESS", manifest=[])
    assert counted(service, "done", "healed", "retrying", "adopted") == [1, 0, 0, 0]
    first = len(asked)
    n = attempt(service, n, "1.2.1", 1, *ends, exit_code="SUCCESS", manifest=[])
    n = attempt(service, n, "1.1.2", 1)
    assert counted(service, "done", "healed", "retrying", "adopted") == [2, 0, 0, 0]
    assert asked[first:] == []
    service.log(event(n, "AttemptLost", {"reason": "unheard"}, job="j", package="1.1.2", attempt=1))
    assert counted(service, "done", "healed", "retrying", "adopted") == [2, 0, 1, 0]
    n = attempt(service, n + 1, "1.1.2", 2, *ends, exit_code="SUCCESS", manifest=[])
    assert counted(service, "done", "healed", "retrying", "adopted") == [3, 1, 0, 0]
    attempt(service, n, "1.2.2", 1, *ends, exit_code="SUCCESS", reason="made-before", manifest=[])
    assert counted(service, "done", "healed", "retrying", "adopted") == [4, 1, 0, 1]


def test_a_dropped_line_has_no_card_any_more(service: ServiceClient) -> None:
    a_bad_day(service)
    service.log(event(12, "Aborted", {"cause": "permanent-failure"}, job="j", package="1.1.2"))
    service.log(*(event(n, "Dropped", {"operation": 1}, job="j", package=f"1.2.{n - 12}") for n in (13, 14)))
    told = service.get("/v1/jobs/j/progress")[1]
    assert [(each["count"], each["card"]["package"]) for each in told["failures"]] == [(1, "1.1.2")]
    assert (told["failed"], told["dropped"]) == (1, 2)


def test_what_waits_with_an_agent_for_a_slot_does_not_run(service: ServiceClient) -> None:
    service.register(1, "j")
    n = 3
    for package in ("1.1.1", "1.2.1", "1.1.2"):
        n = attempt(service, n, package, 1)
    assert counted(service, "running") == [3]
    with Small(site()) as small:
        small.submit(bag(3))
        pilot = small.pilot(backlog=2)
        service.jobs.engine = small.core.engine
        told = service.get("/v1/jobs/j/progress")[1]
        assert (told["running"], [each["running"] for each in told["stages"]]) == (1, [1])
        for package in list(pilot.packages):
            pilot.succeed(package)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/j", "/v1/jobs/j/packages", "/v1/jobs/j/packages/1.1.1", "/v1/jobs/j/events", "/v1/jobs"]
)
def test_what_the_book_says_is_told_when_it_has_led_to_what_follows_from_it(service: ServiceClient, path: str) -> None:
    service.register(1, "j")
    pending_effects = service.jobs.pending_effects = for_many()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(service.get, path)
        with pytest.raises(TimeoutError):
            answer.result(0.3)
        pending_effects.set_result(None)
        assert answer.result(WAIT_SECONDS)[0] == 200
