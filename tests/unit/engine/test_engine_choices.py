"""Why a site was chosen can be asked afterwards: as the sites stood while an attempt is under way, as the book tells it then."""

from __future__ import annotations

from pilotage.book.rows.rows import PackageFacts
from pilotage.engine.selection import SelectionSettings
from pilotage.engine.transitions.queue_classes import NOTE_SECONDS
from pilotage.model.answers import Why
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.operations import HibernateSite, SubmitAttempt, SubmitPilot
from pilotage.model.resources import Capacity
from pilotage.service.messages import SiteOperationRequest
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, kind, site

GIB = 2**30
ROOMY = Capacity(cores_hundredths=100, memory_bytes=4 * GIB)


def reasons(small: Small, code: str, package: str = "1.1.1") -> list[Why]:
    return [each for each in small.explain(package).reasons if each.code == code]


def put_to_sleep(small: Small, name: str, message: str = "") -> None:
    small.step(SiteOperationRequest(token=8, operation=HibernateSite(site=name, message=message)))
    small.answers.clear()


def test_it_is_told_how_the_sites_stood_when_an_attempt_was_given_to_one() -> None:
    drawn = SelectionSettings(policy="weighted-random", trial_room=0, replication_limit=0)
    sites = [site(name, mode="bound", capacity=ROOMY, job_throttle=9.0) for name in ("a", "b", "c")]
    with Small(*sites, site("thin", mode="bound"), selection=drawn) as small:
        put_to_sleep(small, "c", "new disks")
        small.submit(bag(1, kind(memory_bytes=GIB)))
        [effect] = small.take(SubmitAttempt)
        [chosen] = reasons(small, "chosen")
        assert (chosen.subject, chosen.count, chosen.since) == (effect.site, 2, small.now)
        assert chosen.message == (
            f"attempt 1 went to {effect.site}: weighted-random drew it from 2 candidates (score 0.00, 50% of the weight)"
        )
        [other] = {"a", "b"} - {effect.site}
        assert {each.subject: each.message for each in reasons(small, "not-chosen")} == {
            other: f"{other} could have been chosen as well (score 0.00, 50% of the weight)",
            "c": "c hibernated",
            "thin": "thin could not run it: it asks for 1 GiB of memory and thin has 0 B",
        }


def test_what_stood_then_is_told_and_not_what_stands_now() -> None:
    with Small(*(site(name, mode="bound", job_throttle=0.0) for name in "abc")) as small:
        small.submit(bag(2))
        first, second = small.take(SubmitAttempt)
        put_to_sleep(small, "b")
        assert reasons(small, "chosen")[0].message == "attempt 1 went to a: it was the first of 3 candidates"
        assert [each.message for each in reasons(small, "not-chosen")] == [
            "b could have been chosen as well (score 0.00, 33% of the weight)",
            "c could have been chosen as well (score 0.00, 33% of the weight)",
        ]
        # The second was bound in the same moment, and shares what was noted: a had room when that began.
        assert reasons(small, "chosen", "1.2.1")[0].subject == "b"
        state = small.engine.state.jobs.by_id[JOB]
        notes = {id(each.choice) for _, each in state.attempts()}
        assert len(notes) == 1
        small.bound(first).succeed("1.1.1")
        small.bound(second).succeed("1.2.1")


def test_a_note_is_taken_anew_after_a_while_and_kept_as_long_as_what_it_is_about() -> None:
    with Small(site("a", mode="bound", job_throttle=0.0), site("b", mode="bound", job_throttle=0.0)) as small:
        small.submit(bag(3))
        first, second = small.take(SubmitAttempt)
        small.wait(NOTE_SECONDS + 1)
        small.bound(first).succeed("1.1.1")
        [third] = small.take(SubmitAttempt)
        [chosen] = reasons(small, "chosen", "1.3.1")
        assert chosen.message == "attempt 1 went to a: no other site could be picked (score 0.10)"
        assert [each.message for each in reasons(small, "not-chosen", "1.3.1")] == ["b had no room"]
        assert reasons(small, "chosen", "1.2.1")[0].since == small.now - NOTE_SECONDS - 1
        for each in (second, third):
            small.bound(each).succeed(each.ref.package)


def test_where_more_is_ready_than_all_have_room_for_no_draw_is_told() -> None:
    sites = [site(name, mode="bound", job_throttle=9.0) for name in ("a", "b")]
    with Small(*sites, selection=SelectionSettings(policy="thompson", trial_room=0, replication_limit=0)) as small:
        small.submit(bag(40))
        bound = small.take(SubmitAttempt)
        assert {each.site for each in bound} == {"a", "b"}
        for each in bound:
            [chosen] = reasons(small, "chosen", each.ref.package)
            assert (
                chosen.message == f"attempt 1 went to {each.site}: more packages were ready than all sites had room for"
            )
            [other] = {"a", "b"} - {each.site}
            [why] = reasons(small, "not-chosen", each.ref.package)
            assert why.message == f"{other} was filled up, too"
        assert len({id(each.choice) for _, each in small.engine.state.jobs.by_id[JOB].attempts()}) == 1


def test_of_a_draw_by_evidence_a_share_of_the_weight_is_told_only_where_weights_say_who_is_compared() -> None:
    drawn = SelectionSettings(policy="thompson", trial_room=0, replication_limit=0)
    for names, share in (("abcdef", ""), ("abcdefg", ", 14% of the weight")):
        with Small(*(site(name, mode="bound") for name in names), selection=drawn) as small:
            small.submit(bag(1))
            [effect] = small.take(SubmitAttempt)
            told = f"thompson drew it from {len(names)} candidates (score 0.00{share})"
            assert reasons(small, "chosen")[0].message == f"attempt 1 went to {effect.site}: {told}"
            other = reasons(small, "not-chosen")[0]
            assert other.message == f"{other.subject} could have been chosen as well (score 0.00{share})"


def test_a_site_that_an_estimate_passes_over_says_so_while_it_runs_and_afterwards() -> None:
    short, long = site("a", mode="bound", wall_seconds=600.0), site("b", mode="bound", wall_seconds=7200.0)
    with Small(short, long) as small:
        given = short.package_seconds_max
        small.submit(bag(1, kind(run_seconds=3600.0)))
        [effect] = small.take(SubmitAttempt)
        told = f"it is expected to take 3600 s, and a allows {given:.0f} s"
        assert [each.message for each in reasons(small, "not-chosen")] == [f"a could not run it: {told}"]
        small.bound(effect).succeed("1.1.1")
        over = small.engine.explain(JOB, "1.1.1", _facts(small))
        assert over is not None
        assert told in next(each.message for each in over.reasons if (each.code, each.subject) == ("site-now", "a"))


def test_an_estimate_that_no_site_lasts_for_is_no_reason() -> None:
    with Small(*(site(name, mode="bound", wall_seconds=600.0) for name in "ab")) as small:
        small.submit(bag(1, kind(run_seconds=3600.0)))
        [effect] = small.take(SubmitAttempt)
        assert [each.message for each in reasons(small, "not-chosen")] == [
            "b could have been chosen as well (score 0.00, 50% of the weight)"
        ]
        small.bound(effect).succeed("1.1.1")
        over = small.engine.explain(JOB, "1.1.1", _facts(small))
        assert over is not None
        assert "expected to take" not in " ".join(each.message for each in over.reasons)


def test_a_site_that_gives_no_more_time_than_cut_it_off_says_so() -> None:
    short, long = site("a", mode="bound", wall_seconds=600.0), site("b", mode="bound", wall_seconds=7200.0)
    with Small(short, long) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        assert effect.site == "a"
        small.bound(effect).fail("1.1.1", reason="wall-time", after=500.0)
        [second] = small.take(SubmitAttempt)
        assert second.site == "b"
        [why] = reasons(small, "not-chosen")
        assert why.message.startswith("a could not run it: it was cut off after ")
        small.bound(second).succeed("1.1.1")


def test_a_reservation_keeps_it_until_a_pilot_pulls() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        bound_at = small.now
        pilot = small.pilot("a")
        [chosen] = reasons(small, "chosen")
        assert (chosen.subject, chosen.since) == ("a", bound_at)
        pilot.succeed("1.1.1")
        small.take(SubmitPilot)


def test_what_an_idle_pilot_fetched_says_so() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(executor="b")), job="k")
        other = small.pilot("b")
        small.wait(2.0, other)
        small.submit(bag(3, kind(run_seconds=600.0)))
        small.pilot("a")
        other.succeed("1.1.1", after=5.0)
        assert other.packages == ["1.3.1"]
        [chosen] = reasons(small, "chosen", "1.3.1")
        assert chosen.message.startswith("attempt 1 went to b: its pilots were idle")


def test_with_one_site_there_is_nothing_to_tell_and_after_a_restart_it_is_not_known() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        small.take(SubmitAttempt)
        assert reasons(small, "chosen") == []
    with Small(site("a", mode="bound"), site("b", mode="bound")) as small:
        small.submit(bag(1))
        small.restart()
        small.effects.clear()
        [chosen] = reasons(small, "chosen")
        assert "the state of the sites at that time is not known" in chosen.message
        assert reasons(small, "not-chosen") == []


def test_of_what_is_over_the_book_tells_where_it_was_and_the_sites_are_told_as_they_stand() -> None:
    with Small(site("a", mode="bound"), site("b", mode="bound"), site("c", mode="bound", users=("eve",))) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        created_at = small.now
        small.bound(effect).succeed("1.1.1")
        put_to_sleep(small, "b", "new disks")
        facts = _facts(small)
        pools = len(small.engine.state.selection.sites._pools)
        told = small.engine.explain(JOB, "1.1.1", facts)
        assert told is not None
        assert [(each.code, each.subject) for each in told.reasons] == [
            ("done", ""), ("chosen", "a"), ("site-now", "a"), ("site-now", "b"), ("site-now", "c"),
        ]  # fmt: skip
        assert told.reasons[1].since == created_at
        assert "now a is candidate for an equal package (score 0.10)" in told.reasons[2].message
        assert "new disks" in told.reasons[3].message
        assert "c is not a site of ada" in told.reasons[4].message
        assert len(small.engine.state.selection.sites._pools) == pools


def _facts(small: Small, package: str = "1.1.1") -> PackageFacts:
    row, place = small.journal.job(JOB), parse_dotted(package)
    assert row is not None
    assert place is not None
    found = small.journal.package(row, place)
    assert found is not None
    return found.facts
