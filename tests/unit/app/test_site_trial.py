"""The test of a site goes from hop to hop by what its service tells, and stops at the first that is not passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from pilotage.app.site_setup import testing
from pilotage.app.site_setup.testing import OUTPUT, HopName, SiteTest
from pilotage.client import Server, ServerRefused
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry

ENTRY = SiteEntry(name="annex", kind="local")
SITE = {"status": "open", "closed": "", "says": "", "pilots_live": 0, "pilots_queued": 0}
PILOT = {"pilot": "annex-1", "request": None, "native_id": "7", "started_at": None, "ended_at": None, "reason": None, "stderr": None}  # fmt: skip
UNHEARD = "pilotage-agent: no answer from the service"
THROUGH_THE_SERVICE = ["submit", "starts", "python", "server", "exchange", "package"]


def site(*pilots: dict[str, Any], noticed: tuple[dict[str, str], ...] = (), **said: Any) -> dict[str, Any]:
    """A site as the service tells of it."""
    return {"site": SITE | said, "pilots": list(pilots), "noticed": list(noticed)}


class ToldServer:
    """A service that tells of a site, a job and its package what it is given: one look after the other, then the last."""

    url = "http://127.0.0.1:7"

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers: dict[str, list[Any]] = {
            "/v1/sites": [{"file": "/etc/sites.yaml", "fault": ""}],
            "/v1/sites/annex": [site()],
            "/v1/sites/annex/try": [{"operation": 4}],
            "/v1/jobs/j1": [{"state": "RUNNING"}],
            "/v1/jobs/j1/packages/1.1.1": [{"attempts": []}],
            "/v1/jobs/j1/progress": [{}],
        }
        for path, given in answers.items():
            self.answers[f"/v1/{path}"] = given
        self.asked: list[tuple[str, object]] = []
        self.posted: list[str] = []

    def get(self, path: str, parameters: object = None) -> Any:
        self.asked.append((path, parameters))
        given = self.answers[path]
        found = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(found, Exception):
            raise found
        return found

    def post(self, path: str, body: object = None) -> Any:
        self.posted.append(path)
        return self.get(path) if path in self.answers else {}

    def do(self, path: str, body: object, *, key: str) -> Any:
        self.posted.append(path)
        return {"operation": 5, "events": 0}


def refused(code: str = "unknown_site") -> ServerRefused:
    return ServerRefused("no such site", subject="annex", status=404, code=code)


class Trial:
    """The test of a site with a service that is told what to say, and without a job of its own."""

    def __init__(
        self, folder: Path, server: ToldServer, *, seconds_max: float = 3600.0, entry: SiteEntry = ENTRY
    ) -> None:
        self.folder = folder
        self.server = server
        self.sleeps = 0
        self.on_sleep: Callable[[], None] = lambda: None
        self.test = SiteTest(
            entry, settings=Settings(), folder=folder, seconds_max=seconds_max, tell=lambda _: None, sleep=self._sleep
        )

        @contextmanager
        def served() -> Iterator[Server]:
            yield cast("Server", server)

        self.test._served = served  # type: ignore[method-assign]
        self.test._submitted = lambda server, place: "j1"  # type: ignore[method-assign]

    def _sleep(self, _seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < 100, "it waits for what does not come"
        self.on_sleep()

    def hops_at_each_sleep(self, *, output: str) -> list[list[HopName]]:
        """What is passed whenever it waits, from now on; the output comes then."""
        seen: list[list[HopName]] = []

        def note() -> None:
            seen.append([each.hop for each in self.test.hops])
            self.put_output(output)

        self.on_sleep = note
        return seen

    def put_output(self, text: str) -> None:
        """What the package would make."""
        for place in self.folder.glob("site-test-annex-*"):
            (place / OUTPUT).write_text(text, "utf-8")

    def failure(self) -> tuple[HopName, str, str]:
        """The hop that was not passed, with what is said of it and whose words."""
        assert not self.test.run()
        last = self.test.hops[-1]
        assert [each.ok for each in self.test.hops] == [True] * (len(self.test.hops) - 1) + [False]
        return last.hop, last.message, last.stderr


def test_every_hop_is_passed_in_order_and_nothing_is_left_of_the_test(tmp_path: Path) -> None:
    server = ToldServer({
        "sites/annex": [site(), site(), site(PILOT), site(PILOT, noticed=({"key": "annex-1", "state": "running"},))],
        "jobs/j1/packages/1.1.1": [{"attempts": []}] * 4 + [{"attempts": [{"running_at": 5.0, "exit_code": None}]}, {"attempts": [{"running_at": 5.0, "exit_code": "SUCCESS"}]}],
    })  # fmt: skip
    trial = Trial(tmp_path, server)
    seen = trial.hops_at_each_sleep(output="annex\n")
    assert trial.test.run()
    assert [each.hop for each in trial.test.hops] == ["service", *THROUGH_THE_SERVICE, "outputs"]
    assert [len(each) - 1 for each in seen] == [0, 1, 2, 2, 5]  # none; submitted; started; the same; heard
    assert trial.test.hops[0].message == server.url
    assert server.posted == ["/v1/jobs/j1/operations", "/v1/jobs/j1/clear", "/v1/jobs/j1/purge"]
    assert list(tmp_path.iterdir()) == []


def test_where_pilots_live_one_more_is_started_and_watched_by_its_own_name(tmp_path: Path) -> None:
    own = PILOT | {"pilot": "annex-trial-4"}
    server = ToldServer({
        "sites/annex": [site(PILOT, pilots_live=1)],
        "pilots": [{"pilots": [PILOT | {"started_at": 1.0}]}, {"pilots": [own]}, {"pilots": [PILOT, own | {"started_at": 2.0}]}],
        "jobs/j1": [{"state": "DONE"}],
    })  # fmt: skip
    trial = Trial(tmp_path, server)
    seen = trial.hops_at_each_sleep(output="annex")
    assert trial.test.run()
    assert server.posted[0] == "/v1/sites/annex/try"
    assert seen[:2] == [["service"], ["service", "submit"]]
    assert ("/v1/pilots", {"after": "annex-trial-", "limit": 1000}) in server.asked
    assert [each.hop for each in trial.test.hops] == ["service", *THROUGH_THE_SERVICE, "outputs"]


@pytest.mark.parametrize("queued, mode, tried", [(1, "pilots", True), (0, "pilots", False), (1, "bound", False)])
def test_another_pilot_is_asked_for_only_where_one_is_there_and_pilots_run_packages(
    tmp_path: Path, queued: int, mode: Any, tried: object
) -> None:
    server = ToldServer(
        {
            "sites/annex": [site(pilots_queued=queued)],
            "sites/annex/try": [refused("cannot_try")],
            "jobs/j1": [{"state": "ABORTED"}],
        }
    )
    trial = Trial(tmp_path, server, entry=msgspec.structs.replace(ENTRY, mode=mode))
    assert trial.failure()[0] == ("submit" if tried else "package")
    assert ("/v1/sites/annex/try" in server.posted) == tried


@pytest.mark.parametrize(
    "attempts, told, state, expected",
    [
        ([{"exit_code": "EXIT_ERROR", "reason": "bad-node", "exit_message": "boom"}], site(), "RUNNING", ("package", "bad-node", "boom")),
        ([{"exit_code": "EXIT_ERROR", "reason": None, "exit_message": None}], site(), "RUNNING", ("package", "EXIT_ERROR", "")),
        ([], site(), "ABORTED", ("package", "its job is ABORTED", "")),
        ([], site(), "CANCELLED", ("package", "its job is CANCELLED", "")),
        ([], site(says="the queue is closed"), "RUNNING", ("submit", "the queue is closed", "")),
        ([], site(PILOT, noticed=({"key": "annex-1", "state": "held", "words": "no disk"},)), "RUNNING", ("starts", "it cannot start by itself: held, no disk", "")),
        ([], site(PILOT, noticed=({"key": "annex-1", "state": "running", "words": UNHEARD},)), "RUNNING", ("server", "the pilot runs, but cannot contact the service", UNHEARD)),
        ([], site(PILOT, noticed=({"key": "annex-1", "state": "running", "words": "HTTP 401"},)), "RUNNING", ("exchange", "the pilot runs, but cannot contact the service", "HTTP 401")),
    ],
)  # fmt: skip
def test_it_stops_where_the_service_tells_of_a_failure(
    tmp_path: Path, attempts: list[dict[str, Any]], told: dict[str, Any], state: str, expected: tuple[str, str, str]
) -> None:
    server = ToldServer(
        {
            "sites/annex": [site(), told],
            "jobs/j1": [{"state": state}],
            "jobs/j1/packages/1.1.1": [{"attempts": attempts}],
        }
    )
    trial = Trial(tmp_path, server)
    assert trial.failure() == expected
    passed = [each.hop for each in trial.test.hops[1:-1]]
    at = THROUGH_THE_SERVICE.index(expected[0])
    assert passed == ([] if expected[0] == "package" else THROUGH_THE_SERVICE[:at])


@pytest.mark.parametrize(
    "told, hop, message",
    [
        (site(), "submit", "timed out"),
        (site(closed="it is full"), "submit", "timed out; it is full"),
        (site(PILOT), "starts", "timed out"),
        (site(PILOT, says="no answer"), "starts", "timed out; no answer"),
        (site(PILOT, noticed=({"key": "annex-1", "state": "running", "words": "still at it"},)), "python", "timed out"),
    ],
)  # fmt: skip
def test_when_its_time_is_over_the_first_hop_that_was_not_seen_is_named(
    tmp_path: Path, told: dict[str, Any], hop: HopName, message: str
) -> None:
    trial = Trial(tmp_path, ToldServer({"sites/annex": [site(), told]}), seconds_max=-1.0)
    assert trial.failure()[:2] == (hop, message)
    assert trial.sleeps == 0


def test_the_pilots_that_were_there_before_are_not_looked_at(tmp_path: Path) -> None:
    ended = PILOT | {"ended_at": 1.0, "reason": "cancelled"}
    server = ToldServer({"sites/annex": [site(ended), site(ended)]})
    assert Trial(tmp_path, server, seconds_max=-1.0).failure()[0] == "submit"


@pytest.mark.parametrize(
    "answers, posted, expected",
    [
        ([site(closed="it hibernates (by-hand): ask me")], [], "it hibernates (by-hand): ask me"),
        ([site(closed="it hibernates (failing)")], ["/v1/sites/annex/wake"], ""),
        ([refused(), site(status="gone"), site()], [], ""),
        ([refused()], [], "the service does not know it: it is not in its file of sites, /etc/sites.yaml"),
        ([site(status="removed")], [], "the service does not know it: it is not in its file of sites, /etc/sites.yaml"),
    ],
)
def test_the_service_has_to_know_the_site_and_wakes_it_unless_somebody_put_it_to_sleep(
    tmp_path: Path, answers: list[Any], posted: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if expected.startswith("the service"):
        monkeypatch.setattr(testing, "KNOWN_SECONDS", -1.0)
    server = ToldServer({"sites/annex": [*answers], "jobs/j1": [{"state": "ABORTED"}]})
    trial = Trial(tmp_path, server)
    hop, message, _ = trial.failure()
    assert (hop, message) == (("service", expected) if expected else ("package", "its job is ABORTED"))
    assert [each for each in server.posted if "sites" in each] == posted
    assert trial.sleeps == (len(answers) - 1)
    if posted or not expected:
        assert trial.test.hops[-1].hint.startswith("see its log")
    elif "by-hand" in expected:
        assert trial.test.hops[-1].hint == "wake it first: pilotage site wake annex"


@pytest.mark.parametrize(
    "text, progress, expected",
    [
        ("elsewhere", {}, "the package ran at elsewhere, not here; 'annex' is also the kind of that site: hibernate it while this one is tested"),
        ("", {}, "site-test.txt has not arrived"),
        (None, {"stuck": "its disk is full"}, "its disk is full"),
    ],
)  # fmt: skip
def test_the_output_has_to_come_from_this_site(
    tmp_path: Path, text: str | None, progress: dict[str, str], expected: str
) -> None:
    trial = Trial(tmp_path, ToldServer({"jobs/j1": [{"state": "DONE"}], "jobs/j1/progress": [{}, progress]}))
    if text is not None:
        trial.on_sleep = lambda: trial.put_output(text)
    assert trial.failure() == ("outputs", expected, "")
    assert trial.sleeps == 1


def test_an_output_that_has_not_come_in_time_is_not_waited_for(tmp_path: Path) -> None:
    trial = Trial(tmp_path, ToldServer({"jobs/j1": [{"state": "DONE"}]}), seconds_max=-1.0)
    assert trial.failure() == ("outputs", "site-test.txt has not arrived", "")
    assert trial.sleeps == 0


def test_a_job_that_the_book_keeps_is_left_to_its_time(tmp_path: Path) -> None:
    server = ToldServer({"jobs/j1": [{"state": "ABORTED"}], "jobs/j1/clear": [refused("not_over")]})
    trial = Trial(tmp_path, server)
    assert trial.failure()[0] == "package"
    assert trial.sleeps == testing.LET_GO_LOOKS
    assert server.posted == ["/v1/jobs/j1/operations", *["/v1/jobs/j1/clear"] * testing.LET_GO_LOOKS]
