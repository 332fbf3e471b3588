"""Why is it where it is, as structured reasons, for every standing; and why a job is not let in."""

from __future__ import annotations

from pilotage.engine.state.jobs import STATUS_NAMES
from pilotage.model.answers import Why
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    Accepted,
    CancelSubmitted,
    Drop,
    ExpandStage,
    Hold,
    Kill,
    Refused,
    Replicate,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import SiteSeen, Submitted
from pilotage.model.resources import Capacity
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

GIB = 2**30


def codes(small: Small, package: str = "1.1.1") -> list[str]:
    return [why.code for why in small.explain(package).reasons]


def why(small: Small, code: str, package: str = "1.1.1") -> Why:
    return next(each for each in small.explain(package).reasons if each.code == code)


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_blocked_package_names_what_it_waits_for() -> None:
    edges = [(f"1.{line}.1", "2.1.1") for line in range(1, 9)]
    with Small(site()) as small:
        small.submit(plan(stage(8), stage(), edges=edges))
        pilot = small.pilot()
        found = small.explain("2.1.1")
        assert (found.job, found.package, found.epoch, found.standing) == (JOB, "2.1.1", 1, "blocked")
        assert [each.subject for each in found.reasons] == ["1.1.1", "1.2.1", "1.3.1", "1.4.1", "1.5.1"]
        assert {(each.code, each.count) for each in found.reasons} == {("waits-for-package", 8)}
        assert "live" in found.reasons[0].message
        pilot.succeed("1.1.1")
        assert why(small, "waits-for-package", "2.1.1").count == 7


def test_a_package_that_waits_for_a_late_stage_names_it() -> None:
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    with Small(site()) as small:
        small.submit(made)
        pilot = small.pilot()
        reason = why(small, "waits-for-stage", "3.1.1")
        assert (reason.subject, reason.count) == ("stage 2", 2)
        pilot.succeed("1.1.1")
        assert why(small, "waits-for-stage", "3.1.1").count == 1


def test_a_ready_package_gets_an_answer_for_each_site() -> None:
    sites = [
        site("small", capacity=Capacity(cores_hundredths=100, memory_bytes=GIB)),
        site("full", capacity=Capacity(cores_hundredths=100, memory_bytes=4 * GIB), mode="bound", job_throttle=0.0),
        site("down", capacity=Capacity(cores_hundredths=100, memory_bytes=4 * GIB)),
        site("short", capacity=Capacity(cores_hundredths=100, memory_bytes=4 * GIB), wall_seconds=5.0),
    ]
    with Small(*sites) as small:
        small.step(SiteSeen(site="down", answers=False))
        small.submit(bag(2, kind(memory_bytes=2 * GIB, wall_seconds=10.0)))
        small.take(SubmitAttempt)
        found = {each.subject: each.code for each in small.explain("1.2.1").reasons}
        assert found == {"small": "site-unable", "full": "site-full", "down": "site-unknown", "short": "site-unable"}
        assert "2 GiB" in why(small, "site-unable", "1.2.1").message


def test_a_package_for_one_kind_of_site_says_so_of_the_others() -> None:
    sites = [site("a", kind="local"), site("b", kind="slurm", mode="bound", job_throttle=0.0)]
    with Small(*sites) as small:
        small.submit(bag(2, kind(executor="slurm")))
        assert [each.site for each in small.take(SubmitAttempt)] == ["b"]
        reason = why(small, "site-unable", "1.2.1")
        assert (reason.subject, reason.message) == ("a", "it may run at slurm only")


def test_a_site_that_it_failed_at_is_avoided_while_there_are_others() -> None:
    sites = [site("a"), site("b", mode="bound", job_throttle=0.0)]
    with Small(*sites) as small:
        small.submit(bag(1), job="filler")
        small.submit(bag(4))
        assert [each.ref.job for each in small.take(SubmitAttempt)] == [JOB]
        pilot = small.pilot("a")
        pilot.succeed("1.1.1")
        [ref] = pilot.held
        pilot.fail(ref.package, "command-not-found")
        assert codes(small, ref.package)[0] == "site-avoided"


def test_a_site_that_hibernates_says_why() -> None:
    with Small(site("a"), site("b", mode="bound", job_throttle=0.0)) as small:
        small.submit(bag(1), job="filler")
        small.submit(bag(4))
        assert [each.ref.job for each in small.take(SubmitAttempt)] == [JOB]
        pilot = small.pilot("a")
        pilot.succeed("1.1.1")
        [ref] = pilot.held
        pilot.fail(ref.package, "platform-failure")
        told = why(small, "site-hibernated", ref.package)
        assert told.subject == "a"
        assert "platform-failure" in told.message


def test_a_quota_that_is_not_reached_is_no_reason() -> None:
    with Small(site(cores=1), owner_running_max=8) as small:
        small.submit(bag(9))
        pilot = small.pilot()
        assert 0 < small.engine.state.jobs.busy_by_owner["ada"] < 8
        assert small.status("1.9.1") == "ready"
        assert codes(small, "1.9.1")
        assert "owner-quota" not in codes(small, "1.9.1")
        pilot.unread.clear()


def test_limits_and_quotas_are_told_with_their_numbers() -> None:
    licensed = kind(category="licence")
    with Small(site(cores=9), owner_running_max=3) as small:
        small.submit(plan(stage(3, licensed), stage(3), limits={"licence": 1}))
        small.pilot()
        assert codes(small, "1.2.1") == ["category-limit", "owner-quota", "next"]
        assert (why(small, "category-limit", "1.2.1").subject, why(small, "category-limit", "1.2.1").count) == (
            "licence",
            1,
        )
        assert (why(small, "owner-quota", "1.2.1").subject, why(small, "owner-quota", "1.2.1").count) == ("ada", 3)


def test_without_any_site_it_says_so() -> None:
    with Small() as small:
        assert isinstance(small.submit(bag(1)), Accepted)
        assert codes(small) == ["no-site"]


def test_a_reserved_package_says_where_and_since_when_and_what_it_waits_for() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        assert codes(small) == ["reserved", "no-slot"]
        assert (why(small, "reserved").subject, why(small, "reserved").since) == ("a", small.now)
        assert why(small, "no-slot").message == "no pilot at a can run it; 1 are requested"
        small.pilot()
        assert why(small, "no-slot", "1.2.1").message == "all 1 slots at a are taken"


def test_a_delayed_package_says_until_when() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.pilot().fail("1.1.1", "missing-input")
        assert codes(small) == ["waits-for-time", "waits-for-input", "failed"]
        assert why(small, "waits-for-time").until == small.now + 10.0


def test_what_holds_for_the_job_comes_first() -> None:
    with Small(site()) as small:
        small.submit(chain())
        small.take(SubmitPilot)
        small.ask(Hold(job=JOB))
        assert codes(small)[0] == "job-held"
        small.ask(Hold(job=JOB, package="2.1.1"))
        assert codes(small, "2.1.1") == ["job-held", "held", "waits-for-package"]
        small.ask(Kill(job=JOB))
        assert codes(small)[:2] == ["job-cancelled", "job-held"]


# --- running --------------------------------------------------------------------------------------------------------


def test_a_running_package_names_its_attempts_and_where_they_are() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        reason = why(small, "running")
        assert (reason.subject, reason.since) == (pilot.name, small.now)
        other = small.agent("b-0.1", site="b", request="b-0")
        other.exchange()
        small.wait(61, other)
        assert codes(small)[0] == "suspect"
        other.exchange()
        other.unread.clear()
        assert codes(small) == ["suspect", "running", "chosen", "not-chosen"]
        small.wait(120, other)
        assert codes(small) == ["lost", "running", "chosen", "not-chosen"]


def test_a_bound_attempt_is_being_submitted_then_queued_then_running() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        assert why(small, "queued").message == "attempt 1 is being submitted to a"
        small.step(Submitted(site="a", key=effect.key, native_id="7"))
        assert why(small, "queued").message == "attempt 1 is in the queue of a"
        small.bound(effect)
        assert codes(small) == ["running"]


def test_what_acts_on_the_outside_and_is_not_heard_of_says_why_nothing_happens() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(side_effects=True)))
        small.pilot("a")
        small.wait(61)
        found = small.explain("1.1.1").reasons
        assert "suspect" in [each.code for each in found]
        assert any("it has side effects" in each.message for each in found)


def test_a_replica_is_told_beside_the_attempt_though_it_waits_for_a_slot() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        small.pilot("a")
        small.ask(Replicate(job=JOB, package="1.1.1"))
        assert "running" in codes(small)
        assert codes(small)[0] == "reserved"
        small.wait(1)
        small.take(SubmitPilot)


# --- over -----------------------------------------------------------------------------------------------------------


def test_everything_that_is_over_says_how() -> None:
    edges = [("1.2.1", "2.1.1")]
    with Small(site(cores=4)) as small:
        small.submit(plan(stage(4), stage(), edges=edges))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(Kill(job=JOB, package="1.2.1"))
        for word in ("one", "two", "three"):
            pilot.exchange()
            pilot.fail("1.3.1", "application-error", message=word)
        small.ask(Drop(job=JOB, stage=1, line=4))
        pilot.exchange()
        pilot.unread.clear()
        assert (codes(small, "1.1.1"), why(small, "done", "1.1.1").message) == (["done"], "attempt 1 was granted")
        assert codes(small, "1.2.1") == ["cancelled"]
        assert codes(small, "1.3.1") == ["aborted"]
        assert codes(small, "1.4.1") == ["dropped"]
        upstream = why(small, "aborted", "2.1.1")
        assert (upstream.subject, upstream.next_step) == ("1.2.1", "restart 1.2.1, or drop its line")


def test_every_standing_has_an_explanation() -> None:
    seen = set()
    made = plan(stage(9), stage(), None, edges=[("1.1.1", "2.1.1")], late={3: ["1.9.1"]})
    with Small(site(cores=1, pilots=1)) as small:
        small.submit(made)
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="1.4.1"))
        small.ask(Drop(job=JOB, stage=1, line=5))
        pilot.fail("1.1.1", "missing-input")
        for number in range(10):
            seen.add(small.explain(small.engine.state.jobs.by_id[JOB].dotted(number)).standing)
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.exchange()
        pilot.succeed(*pilot.packages)
        pilot.fail(pilot.packages[0], "application-error", message="once")
        while small.engine.state.jobs.by_id[JOB].counts[STATUS_NAMES.index("aborted")] == 0:
            word = "x" * len(small.book)
            pilot.fail(pilot.packages[0], "application-error", message=word)
        for number in range(10):
            found = small.explain(small.engine.state.jobs.by_id[JOB].dotted(number))
            assert found.reasons
            seen.add(found.standing)
        assert seen == set(STATUS_NAMES)


# --- letting jobs in ------------------------------------------------------------------------------------------------


def test_a_job_that_no_site_could_run_is_refused_with_the_nearest_site() -> None:
    sites = [
        site("tiny", capacity=Capacity(cores_hundredths=100, memory_bytes=GIB)),
        site("near", capacity=Capacity(cores_hundredths=1600, memory_bytes=4 * GIB)),
    ]
    with Small(*sites) as small:
        answer = small.submit(bag(1, kind("reconstruct", cores_hundredths=800, memory_bytes=8 * GIB)))
        assert isinstance(answer, Refused)
        assert (answer.code, answer.subject) == ("unsatisfiable", "reconstruct")
        assert "near" in answer.next_step
        assert "memory" in answer.message
        assert small.book == []
        assert small.engine.state.jobs.by_id == {}
        assert isinstance(small.submit(bag(1, kind(cores_hundredths=800))), Accepted)
        small.take(SubmitPilot)


def test_what_asks_for_all_the_time_that_a_site_gives_fits_into_no_pilot_and_is_refused() -> None:
    with Small(site("lyon", wall_seconds=3600.0)) as small:
        answer = small.submit(bag(1, kind("reconstruct", wall_seconds=3600.0)))
        assert isinstance(answer, Refused)
        assert (answer.code, answer.subject) == ("unsatisfiable", "reconstruct")
        assert "it asks for 3600 s and lyon allows 3540 s" in answer.message
        assert isinstance(small.submit(bag(1, kind(wall_seconds=3540.0))), Accepted)
        assert small.pilot("lyon", remaining_seconds=3541.0).packages == ["1.1.1"]


def test_a_batch_job_is_given_all_the_time_of_its_site() -> None:
    with Small(site("lyon", wall_seconds=3600.0, mode="bound")) as small:
        assert isinstance(small.submit(bag(1, kind(wall_seconds=3600.0))), Accepted)
        small.take(SubmitAttempt)


def test_an_unknown_executor_a_known_job_and_a_quota_are_refused() -> None:
    with Small(site(), owner_packages_max=3, fairness="first-come") as small:
        answers = [small.submit(bag(1, kind(executor="moon"))), small.submit(bag(4)), small.submit(bag(2))]
        answers += [small.submit(bag(1)), small.submit(bag(2), job="k"), small.submit(bag(2), job="k", owner="emmy")]
        near = small.submit(bag(1, kind(executor="aa")), job="n")
        assert isinstance(near, Refused)
        assert near.next_step == "there is: a; did you mean 'a'?"
        told = [each.code if isinstance(each, Refused) else "accepted" for each in answers]
        assert told == ["unknown-site", "quota", "accepted", "known-job", "quota", "accepted"]
        small.pilot().succeed("1.1.1")
        assert isinstance(small.submit(bag(2), job="l"), Accepted)
        small.agents["a-3.1"].unread.clear()


def test_what_was_killed_or_dropped_does_not_count_against_the_quota_of_its_owner() -> None:
    with Small(site(), owner_packages_max=3) as small:
        small.submit(bag(3), job="killed")
        small.take(SubmitPilot)
        small.ask(Kill(job="killed"))
        assert isinstance(small.submit(bag(3), job="k"), Accepted)
        small.ask(Drop(job="k", stage=1, line=1))
        assert isinstance(small.submit(bag(1), job="l"), Accepted)


def test_a_job_that_grows_beyond_the_quota_of_its_owner_is_given_up() -> None:
    made = plan(stage(), None, late={2: ["1.1.1"]})
    with Small(site(), owner_packages_max=3) as small:
        small.submit(made)
        small.pilot().succeed("1.1.1")
        assert len(small.take(ExpandStage)) == 1
        small.grow(grown(made, late=2, lines=4), late=2)
        [aborted] = small.told(payloads.Aborted)
        assert b'"quota"' in bytes(aborted.data)
        assert codes(small)[0] == "job-aborted"
        assert small.take(CancelSubmitted) == []
