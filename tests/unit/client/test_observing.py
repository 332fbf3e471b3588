"""What a book tells of a job that has run, for a world that is fitted to it."""

from __future__ import annotations

from typing import Any

from pilotage.app.simulation import observe
from pilotage.client import Server
from pilotage.client.server import Parameters
from pilotage.model.sites.world import Observed


class Book(Server):
    """Answers three questions, two items at a time."""

    def __init__(
        self, *, packages: list[dict[str, Any]], events: list[dict[str, Any]], pilots: list[dict[str, Any]]
    ) -> None:
        super().__init__("http://127.0.0.1:1")
        self._items = {"packages": packages, "pilots": pilots}
        self._events = events

    def get(self, path: str, parameters: Parameters | None = None) -> Any:
        asked = parameters or {}
        name = path.rpartition("/")[2]
        if name == "events":
            after = int(asked["after"] or 0)
            return {
                "events": self._events[after : after + 2],
                "after": after + 2,
                "more": after + 2 < len(self._events),
            }
        begin = int(asked.get("cursor") or asked.get("after") or 0)
        following = str(begin + 2) if begin + 2 < len(self._items[name]) else None
        return {name: self._items[name][begin : begin + 2], "next": following}


def package(dotted: str, *, done: bool) -> dict[str, Any]:
    return {"id": dotted, "activity": "fit", "done_at": 900.0 if done else None, "aborted_at": None if done else 900.0}


def event(kind: str, dotted: str, attempt: int, *, at: float = 100.0, **data: Any) -> dict[str, Any]:
    return {"type": kind, "time": at, "package": dotted, "attempt": attempt, "data": data}


def phases(**seconds: float) -> list[dict[str, Any]]:
    return [{"phase": phase, "started_at": 100.0, "seconds": each} for phase, each in seconds.items()]


def pilot(name: str, **known: Any) -> dict[str, Any]:
    blank = dict.fromkeys(("site", "request", "requested_at", "started_at", "ended_at", "reason"))
    return {"pilot": name, **blank, **known}


def observed() -> Observed:
    seen = Observed()
    book = Book(
        packages=[package("1.1.1", done=True), package("1.2.1", done=True), package("1.3.1", done=False)],
        events=[
            {"type": "JobRegistered", "time": 50.0, "data": {}},
            event("AttemptCreated", "1.1.1", 1, site="lyon", pilot="p1", lease_seconds=60.0),
            event("AttemptLost", "1.1.1", 1, reason="unheard"),
            event(
                "AttemptFinished",
                "1.1.1",
                1,
                exit_code="SUCCESS",
                phases=phases(inputs=2.0, application=30.0, outputs=1.0),
            ),
            event("AttemptCreated", "1.2.1", 1, site="lyon", pilot="p1", lease_seconds=60.0),
            event("AttemptLost", "1.2.1", 1, reason="unheard"),
            event("AttemptCreated", "1.2.1", 2, site="nice"),
            event("AttemptStarted", "1.2.1", 2, at=140.0),
            event("AttemptFinished", "1.2.1", 2, exit_code="SUCCESS", phases=phases(application=60.0)),
            event("AttemptCreated", "1.3.1", 1, site="lyon", pilot="p1", lease_seconds=60.0),
            event("AttemptFinished", "1.3.1", 1, exit_code="EXECUTION_FAILED", reason="application-error"),
            event("AttemptCreated", "1.3.1", 2, site="lyon", pilot="p1", lease_seconds=60.0),
            event("AttemptFinished", "1.3.1", 2, at=900.0, exit_code="EXECUTION_CANCELED"),
        ],
        pilots=[
            pilot("r1", site="lyon", requested_at=60.0, ended_at=900.0),
            pilot("p1", site="lyon", request="r1", started_at=90.0),
            pilot("r2", site="lyon", requested_at=70.0, ended_at=80.0, reason="failed"),
            pilot("r3", site="lyon", requested_at=70.0),
            pilot("r0", site="lyon", requested_at=10.0, started_at=20.0),
            pilot("r4", site="lyon", requested_at=2000.0, started_at=2001.0),
        ],
    )
    observe(book, "J1", seen)
    return seen


def test_what_ran_is_told_by_activity_and_site() -> None:
    seen = observed()
    assert seen.run_seconds == {"fit": {"lyon": [30.0], "nice": [60.0]}}
    assert (seen.inputs_seconds, seen.outputs_seconds) == ([2.0], [1.0])


def test_a_failure_is_the_sites_fault_unless_the_package_fails_everywhere() -> None:
    seen = observed()
    assert (seen.sites["lyon"].attempts, seen.sites["lyon"].failures) == (2, {"platform-failure": 1})
    assert (seen.sites["nice"].attempts, seen.sites["nice"].failures) == (1, {})
    assert (seen.packages, seen.doomed) == ({"fit": 3}, {"fit": 1})


def test_pilots_of_the_time_of_the_job_tell_how_long_a_queue_is() -> None:
    lyon = observed().sites["lyon"]
    assert lyon.queue_seconds == [30.0]
    assert (lyon.pilots, lyon.dead_pilots) == (2, 1)


def test_of_attempts_that_share_a_batch_job_only_the_first_tells_how_long_a_queue_is() -> None:
    seen = Observed()
    events = [event("AttemptCreated", f"1.{number}.1", 1, site="nice", group="J1:1.1.1:1") for number in (1, 2, 3)] + [
        event("AttemptStarted", f"1.{number}.1", 1, at=100.0 + 40.0 * number) for number in (1, 2, 3)
    ]
    observe(Book(packages=[], events=events, pilots=[]), "J1", seen)
    assert seen.sites["nice"].queue_seconds == [40.0]


def test_an_attempt_that_healing_or_a_group_gave_up_blames_no_site() -> None:
    seen = Observed()
    events = [event("AttemptCreated", "1.1.1", number, site="nice") for number in (1, 2, 3)]
    events += [
        event("AttemptLost", "1.1.1", number, reason=reason)
        for number, reason in enumerate(("healed", "regrouped", "outrun"), 1)
    ]
    observe(Book(packages=[package("1.1.1", done=False)], events=events, pilots=[]), "J1", seen)
    assert not any(site.failures or site.attempts for site in seen.sites.values())


def test_a_bound_attempt_queues_by_itself() -> None:
    assert observed().sites["nice"].queue_seconds == [40.0]
