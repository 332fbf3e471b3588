"""What every way to a site promises: with real processes, real batch systems here and over ssh, and a fake for tests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from pilotage.adapters.sites.local import LocalSettings, LocalSite
from pilotage.adapters.sites.zipapp import build
from pilotage.agent.batch import element_key
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import Demand
from pilotage.ports import SeenAtSite, SiteAccess
from tests.kit.agent_service import agent_service
from tests.kit.batch_sites import batch_site, gridengine_here, slurm_here, slurm_over_ssh
from tests.kit.pilots import wait_for_end, wait_until

Open = Callable[[], SiteAccess]


class FakeSite:
    """A site in memory; what was started belongs to `started`, which outlives it."""

    _numbers = itertools.count(1)

    def __init__(self, started: dict[str, SeenAtSite]) -> None:
        self._started = started

    @property
    def look_seconds(self) -> float:
        return 0.1

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        return [self._start(element_key(key, offset) or key) for offset in range(count)]

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        return self._start(key)

    def _start(self, key: str) -> str:
        return self._started.setdefault(key, SeenAtSite(native_id=str(next(self._numbers)))).native_id

    def cancel(self, *keys: str) -> None:
        for key in self._started.keys() & keys:
            if not self._started[key].ended:
                native_id = self._started[key].native_id
                self._started[key] = SeenAtSite(native_id=native_id, ended=True, reason="terminated")

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        seen = dict(self._started)
        for key, each in seen.items():
            if each.ended:
                del self._started[key]
        return seen

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        return []  # everything speaks at once

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


@pytest.fixture(params=["local", "fake", "slurm", "slurm over ssh", "gridengine"])
def open_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:
        if request.param == "local":
            yield stack.enter_context(_local(tmp_path))
        elif request.param == "fake":
            yield stack.enter_context(_fake(tmp_path))
        elif request.param == "gridengine":
            cell = request.getfixturevalue("grid_engine")
            yield stack.enter_context(batch_site(tmp_path, "gridengine", lambda: gridengine_here(cell)))
        elif request.param == "slurm":
            cluster = request.getfixturevalue("slurm_cluster")
            yield stack.enter_context(batch_site(tmp_path, "slurm", lambda: slurm_here(cluster)))
        else:
            cluster, server = (request.getfixturevalue(name) for name in ("slurm_cluster", "ssh_server"))
            make_caller = partial(slurm_over_ssh, cluster, server, tmp_path / "state")
            yield stack.enter_context(batch_site(tmp_path, "slurm", make_caller))


def test_what_is_submitted_is_listed_under_its_key_until_it_ends(open_site: Open) -> None:
    site = open_site()
    native_id = site.submit_pilots("here-1")[0]
    assert native_id
    assert site.listing() == {"here-1": SeenAtSite(native_id=native_id)}
    assert site.listing() == {"here-1": SeenAtSite(native_id=native_id)}


def test_a_key_is_started_once_however_often_it_is_submitted(open_site: Open) -> None:
    site = open_site()
    first = site.submit_pilots("here-1")
    assert [*first] == [*site.submit_pilots("here-1")] == [*open_site().submit_pilots("here-1")]
    assert list(site.listing()) == ["here-1"]


def test_nothing_is_noticed_of_what_has_just_begun_nor_of_what_is_not_there(open_site: Open) -> None:
    site = open_site()
    site.submit_pilots("here-1")
    site.listing()
    assert [*site.notice(["here-1", "here-2"])] == []


def test_two_keys_are_two_things(open_site: Open) -> None:
    site = open_site()
    assert [*site.submit_pilots("here-1")] != [*site.submit_pilots("here-2")]
    assert sorted(site.listing()) == ["here-1", "here-2"]


def test_several_are_started_at_once_and_those_that_are_there_are_not_started_again(open_site: Open) -> None:
    site = open_site()
    second = site.submit_pilots("here-9")[0]
    native_ids = site.submit_pilots("here-8", count=4)
    assert len(set(native_ids)) == 4
    assert native_ids[1] == second
    keys = ["here-8", "here-9", "here-10", "here-11"]
    listed = site.listing()
    assert [listed[key].native_id for key in keys] == [*native_ids]
    assert len(listed) == 4
    assert [*open_site().submit_pilots("here-8", count=4)] == [*native_ids]

    site.cancel("here-8", "here-10")
    ended: set[str] = set()

    def two_ended() -> bool:
        ended.update(key for key, seen in site.listing().items() if seen.ended)
        return len(ended) == 2

    wait_until(two_ended)
    assert ended == {"here-8", "here-10"}
    assert sorted(site.listing()) == ["here-11", "here-9"]


def test_a_bound_attempt_is_submitted_and_listed_like_a_pilot(open_site: Open) -> None:
    site = open_site()
    key = "job:1.2.3:1"
    native_id = site.submit_attempt(key, ref=AttemptRef("job", "1.2.3", 1), demand=Demand())
    assert site.listing()[key].native_id == native_id


def test_what_is_cancelled_ends_and_that_is_told_once(open_site: Open) -> None:
    site = open_site()
    native_id = site.submit_pilots("here-1")[0]
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
    native_id = first.submit_pilots("here-1")[0]
    first.close()
    assert open_site().listing() == {"here-1": SeenAtSite(native_id=native_id)}
