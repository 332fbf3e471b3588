"""How a site stands, asked of the engine: what people are told of it, stage by stage."""

from __future__ import annotations

from typing import Literal

from pilotage.model.exchange.operations import HibernateSite, SubmitAttempt, SubmitPilot, WakeSite
from pilotage.model.exchange.reports import Gone, Noticed, SiteNoticed, Submitted
from pilotage.reading.views import SiteReason, SiteStatus
from pilotage.service.jobs.stall import stall_of
from pilotage.service.messages import SiteOperationRequest
from pilotage.service.sites.pool import unheard_at
from pilotage.service.sites.status import status_of_site
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, kind, site


def stand(small: Small) -> SiteStatus:
    found = status_of_site(small.core.engine, "a")
    assert found is not None
    return found


def reason(small: Small, stage: str) -> SiteReason:
    return next(each for each in stand(small).reasons if each.stage == stage)


def test_a_site_with_all_its_pilots_is_no_site_where_nothing_passes() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        told = reason(small, "pilots")
        assert told.message == "1 pilot lives and 0 on the way, of at most 1: no more are requested"
        assert told.passes
        pilot.succeed("1.1.1")


def test_a_site_of_some_users_is_told_as_theirs_and_not_as_refused() -> None:
    with Small(site(users=("ada", "emmy"))) as small:
        assert stand(small).status == "candidate"
        assert reason(small, "filter").message == "it runs packages of ada, emmy only"


def test_the_room_of_pilots_names_their_backlog() -> None:
    with Small(site()) as small:
        small.submit(bag(2, kind(run_seconds=0.01)))
        pilot = small.pilot(backlog=8)
        assert reason(small, "room").message.endswith("; 8 of them are in the backlog of its pilots")
        pilot.succeed("1.1.1", "1.2.1")


def test_a_site_that_was_woken_has_room_for_one_canary() -> None:
    with Small(site()) as small:
        for operation in (HibernateSite(site="a"), WakeSite(site="a")):
            small.step(SiteOperationRequest(token=1, operation=operation))
        small.answers.clear()
        assert reason(small, "room").message == "it was woken: one canary may go there beside the 0 reserved or running"


def test_a_site_that_sleeps_says_in_short_why_nothing_is_submitted_there() -> None:
    with Small(site(), dead_starts_max=2) as small:
        small.submit(bag(1))
        for told in (
            "1 pilot died there before contacting us: nothing more is submitted for 60 s",
            "it hibernates after 2 dead starts",
        ):
            [wanted] = small.take(SubmitPilot)
            small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="no python"))
            assert (stand(small).closed, reason(small, "pilots").message) == (told, told)
            small.wait(100)
        assert reason(small, "status").message.startswith("it hibernates (dead-starts): 2 pilots in a row ended")
        small.restart()
        assert stand(small).closed == "it hibernates after some dead starts"
        small.effects.clear()
    with Small(site()) as small:
        small.step(SiteOperationRequest(token=1, operation=HibernateSite(site="a", message="new disks")))
        small.answers.clear()
        assert stand(small).closed == "it hibernates (by-hand): new disks"


def mute(
    key: str,
    *,
    state: Literal["running", "held"] = "running",
    words: str = "one\ntwo\n2026-11-16T06:45:14+0000 pilotage-agent: refused",
) -> SiteNoticed:
    return SiteNoticed(site="a", things=(Noticed(key=key, state=state, words=words),))


def test_a_pilot_that_runs_and_does_not_speak_is_told_wherever_somebody_asks_until_it_speaks() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        [effect] = small.effects
        assert isinstance(effect, SubmitPilot)
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        assert unheard_at("a", small.engine) == [effect.key]
        small.step(mute(effect.key))
        told = "a pilot runs at a without contacting the service: two / refused"
        assert stand(small).unheard == "a pilot runs at a without contacting the service"
        assert [each.key for each in stand(small).noticed] == [effect.key]
        assert told in [each.message for each in stand(small).reasons if each.code == "unheard"]
        assert stall_of(small.engine, JOB).trouble == f"{told}; next: pilotage site test a"
        [why] = [each for each in small.explain("1.1.1").reasons if each.code == "unheard"]
        assert (why.message, why.next_step) == (told, "pilotage site test a")
        pilot = small.pilot()
        assert (stand(small).unheard, stand(small).noticed, unheard_at("a", small.engine)) == ("", (), [])
        assert stall_of(small.engine, JOB).trouble == ""
        pilot.succeed("1.1.1")


def test_what_is_held_is_told_with_the_word_of_its_batch_system_and_forgotten_when_that_is_noticed_no_more() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitPilot)
        small.step(mute(effect.key, state="held", words="PartitionTimeLimit"))
        told = "a batch job at a is held by the batch system: the batch system says PartitionTimeLimit"
        assert stall_of(small.engine, JOB).trouble.startswith(told)
        small.step(mute(effect.key, words=""))
        assert stall_of(small.engine, JOB).trouble.startswith(
            "a pilot runs at a without contacting the service: it has printed nothing"
        )
        small.step(SiteNoticed(site="a"))
        assert (stand(small).unheard, stall_of(small.engine, JOB).trouble) == ("", "")


def test_a_package_with_a_batch_job_of_its_own_that_does_not_speak_is_told_to_its_job_alone() -> None:
    with Small(site("a", mode="bound"), site("b", mode="bound")) as small:
        small.submit(bag(1, kind(executor="a")))
        small.submit(bag(1, kind(executor="b")), job="other")
        key = next(each.key for each in small.take(SubmitAttempt) if each.site == "a")
        small.step(Submitted(site="a", key=key, native_id="42"))
        small.step(mute(key))
        assert "refused" in stall_of(small.engine, JOB).trouble
        assert stall_of(small.engine, "other").trouble == ""
        assert "unheard" in [each.code for each in small.explain("1.1.1").reasons]


def test_a_batch_job_that_does_not_speak_is_told_while_pilots_live_elsewhere() -> None:
    with Small(site("a", mode="bound"), site("b")) as small:
        small.submit(bag(1, kind(executor="b")), job="other")
        pilot = small.pilot("b")
        small.submit(bag(1, kind(executor="a")))
        [effect] = small.take(SubmitAttempt)
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        small.step(mute(effect.key))
        assert "refused" in stall_of(small.engine, JOB).trouble
        assert stall_of(small.engine, "other").trouble == ""
        pilot.succeed("1.1.1")
