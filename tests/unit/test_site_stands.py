"""How a site stands, asked of the engine: what people are told of it, stage by stage."""

from __future__ import annotations

from pilotage.model.operations import HibernateSite, WakeSite
from pilotage.service.messages import AskedOfSite
from pilotage.service.running.site_stands import SiteReason, SiteStand, stand_of_site
from tests.small_engine import Small
from tests.small_plans import bag, site


def stand(small: Small) -> SiteStand:
    found = stand_of_site(small.core.engine, "a")
    assert found is not None
    return found


def reason(small: Small, stage: str) -> SiteReason:
    return next(each for each in stand(small).reasons if each.stage == stage)


def test_a_site_with_all_its_pilots_is_no_site_where_nothing_passes() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        told = reason(small, "pilots")
        assert told.message == "1 pilot lives and 0 on the way, of at most 1: no further one is asked for"
        assert told.passes
        pilot.succeed("1.1.1")


def test_a_site_of_some_users_is_told_as_theirs_and_not_as_refused() -> None:
    with Small(site(users=("ada", "emmy"))) as small:
        assert stand(small).status == "candidate"
        assert reason(small, "filter").message == "it runs packages of ada, emmy alone"


def test_the_room_of_pilots_names_their_backlog() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot(backlog=8)
        assert reason(small, "room").message.endswith("; 8 of them are the backlog of its pilots")
        pilot.succeed("1.1.1", "1.2.1")


def test_a_site_that_was_woken_has_room_for_one_canary() -> None:
    with Small(site()) as small:
        for operation in (HibernateSite(site="a"), WakeSite(site="a")):
            small.step(AskedOfSite(token=1, operation=operation))
        small.answers.clear()
        assert (
            reason(small, "room").message
            == "it was woken: one canary may go there beside the 0 that are reserved or run"
        )
