"""What every way to a site promises: the local one keeps it with real processes, and a fake that tests may use keeps it too."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pilotage.adapters.sites.local import LocalSettings, LocalSite
from pilotage.adapters.sites.zipapp import build
from pilotage.model.demand import Demand
from pilotage.model.exchange import AttemptRef
from pilotage.ports import SeenAtSite, SiteAccess
from tests.agent_service import agent_service
from tests.pilots import wait_for_end, wait_until

Open = Callable[[], SiteAccess]


class FakeSite:
    """A site in memory; what was started belongs to `started`, which outlives it."""

    _numbers = itertools.count(1)

    def __init__(self, started: dict[str, SeenAtSite]) -> None:
        self._started = started

    def submit_pilot(self, key: str) -> str:
        return self._started.setdefault(key, SeenAtSite(native_id=str(next(self._numbers)))).native_id

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        return self.submit_pilot(key)

    def cancel(self, key: str) -> None:
        if key in self._started and not self._started[key].ended:
            native_id = self._started[key].native_id
            self._started[key] = SeenAtSite(native_id=native_id, ended=True, reason="terminated")

    def listing(self) -> Mapping[str, SeenAtSite]:
        seen = dict(self._started)
        for key, each in seen.items():
            if each.ended:
                del self._started[key]
        return seen

    def close(self) -> None:
        """Nothing is held."""


@contextlib.contextmanager
def _local(folder: Path) -> Iterator[Open]:
    with agent_service(folder / "agent.sock", interval_seconds=0.5) as service:
        settings = LocalSettings(
            site="here",
            state=folder / "state",
            agent=build(folder / "agent.pyz"),
            server=service.address,
            grace_seconds=1.0,
        )
        opened: list[LocalSite] = []

        def open_site() -> SiteAccess:
            opened.append(LocalSite(settings))
            return opened[-1]

        yield open_site
        last = LocalSite(settings)
        for key in last.listing():
            last.cancel(key)
        wait_until(lambda: not last.listing())
        for site in (last, *opened):
            site.listing()  # takes the exit status of what it started
            site.close()


@contextlib.contextmanager
def _fake(folder: Path) -> Iterator[Open]:
    started: dict[str, SeenAtSite] = {}
    yield lambda: FakeSite(started)


@pytest.fixture(params=[_local, _fake], ids=["local", "fake"])
def open_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with request.param(tmp_path) as opened:
        yield opened


def test_what_is_submitted_is_listed_under_its_key_until_it_ends(open_site: Open) -> None:
    site = open_site()
    native_id = site.submit_pilot("here-1")
    assert native_id
    assert site.listing() == {"here-1": SeenAtSite(native_id=native_id)}
    assert site.listing() == {"here-1": SeenAtSite(native_id=native_id)}


def test_a_key_is_started_once_however_often_it_is_submitted(open_site: Open) -> None:
    site = open_site()
    assert site.submit_pilot("here-1") == site.submit_pilot("here-1") == open_site().submit_pilot("here-1")
    assert list(site.listing()) == ["here-1"]


def test_two_keys_are_two_things(open_site: Open) -> None:
    site = open_site()
    assert site.submit_pilot("here-1") != site.submit_pilot("here-2")
    assert sorted(site.listing()) == ["here-1", "here-2"]


def test_a_bound_attempt_is_submitted_and_listed_like_a_pilot(open_site: Open) -> None:
    site = open_site()
    key = "job:1.2.3:1"
    native_id = site.submit_attempt(key, ref=AttemptRef("job", "1.2.3", 1), demand=Demand())
    assert site.listing()[key].native_id == native_id


def test_what_is_cancelled_ends_and_that_is_told_once(open_site: Open) -> None:
    site = open_site()
    native_id = site.submit_pilot("here-1")
    site.cancel("here-1")
    seen = wait_for_end(site)
    assert (seen.native_id, bool(seen.reason)) == (native_id, True)
    assert site.listing() == {}


def test_cancelling_what_is_not_there_changes_nothing(open_site: Open) -> None:
    site = open_site()
    site.cancel("nobody")
    assert site.listing() == {}


def test_what_was_started_goes_on_when_its_starter_is_closed_and_is_found_by_the_next(open_site: Open) -> None:
    first = open_site()
    native_id = first.submit_pilot("here-1")
    first.close()
    assert open_site().listing() == {"here-1": SeenAtSite(native_id=native_id)}
