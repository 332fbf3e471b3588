"""Outputs are in their stores before a package is done; deletable ones go after their last consumer, and are made again for a restart."""

from __future__ import annotations

from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Drop, ExpandStage, Release, Restart, Restore, StoreOutputs, SubmitPilot
from pilotage.model.exchange.reports import OutputsCopied
from tests.kit.small_engine import JOB, Small, differences
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

STORED = kind("simulate", stores_outputs=True)
DISPOSED = kind("simulate", disposes_outputs=True)
COPY = StoredCopy(name="out.dat", locator="s3://archive/out.dat", size_bytes=3, sha256="a" * 64)
FAILED = FailedCopy(name="out.dat", locator="sftp://tape/out.dat", reason="store-full", message="quota exceeded")


# --- stored before the grant ----------------------------------------------------------------------------------------


def test_a_package_is_done_when_its_outputs_are_in_their_stores() -> None:
    with Small(site()) as small:
        small.submit(bag(1, STORED))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        [wanted] = small.take(StoreOutputs)
        assert wanted.ref == AttemptRef(JOB, "1.1.1", 1)
        assert small.status("1.1.1") == "live"
        assert small.told(payloads.CommitGranted, "1.1.1") == []
        small.step()
        assert small.take(StoreOutputs) == []  # it is asked for once
        small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,)))
        assert small.status("1.1.1") == "done"
        assert len(small.told(file_payloads.OutputsStored, "1.1.1")) == 1


def test_the_slot_is_free_while_outputs_are_copied() -> None:
    with Small(site(cores=1)) as small:
        small.submit(bag(2, STORED))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.packages == ["1.2.1"]
        pilot.succeed("1.2.1")
        for wanted in small.take(StoreOutputs):
            small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,)))
        assert small.standings() == {"done": ["1.1.1", "1.2.1"]}


def test_a_package_whose_outputs_are_copied_or_could_not_be_counts_against_no_limit() -> None:
    with Small(site(cores=2), owner_running_max=1) as small:
        small.submit(bag(2, STORED))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.packages == ["1.2.1"], "its place at the limit is free, as its slot is"
        [wanted] = small.take(StoreOutputs)
        small.step(OutputsCopied(ref=wanted.ref, failed=(FAILED,)))
        small.ask(Release(job=JOB, package="1.1.1"))
        assert len(small.take(StoreOutputs)) == 1
        small.engine.sanity_check()  # it looks at the limits of owners
        pilot.unread.clear()


def test_a_failed_copy_holds_the_package_with_a_message_and_a_release_copies_again() -> None:
    with Small(site()) as small:
        small.submit(bag(1, STORED))
        small.pilot().succeed("1.1.1")
        [wanted] = small.take(StoreOutputs)
        small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,), failed=(FAILED,)))
        assert small.status("1.1.1") == "held"
        [held] = small.told(payloads.Held, "1.1.1")
        message = "out.dat to sftp://tape/out.dat (store-full: quota exceeded); 1 copies are there"
        assert message.encode() in bytes(held.data)
        assert message in small.explain("1.1.1").reasons[0].message
        small.wait(1000.0)
        small.effects = [each for each in small.effects if isinstance(each, StoreOutputs)]
        assert small.take(StoreOutputs) == []
        small.ask(Release(job=JOB, package="1.1.1"))
        [again] = small.take(StoreOutputs)
        small.step(OutputsCopied(ref=again.ref, copies=(COPY, COPY)))
        assert small.status("1.1.1") == "done"
        small.effects.clear()


def test_after_a_restart_copies_are_asked_for_again_and_a_failure_stays_a_failure() -> None:
    with Small(site(cores=3)) as small:
        small.submit(bag(3, STORED))
        small.pilot().succeed("1.1.1", "1.2.1", "1.3.1")
        first, second, third = small.take(StoreOutputs)
        small.step(OutputsCopied(ref=second.ref, failed=(FAILED,)))
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        assert {each.ref for each in small.take(StoreOutputs)} == {first.ref, third.ref}
        assert small.status("1.2.1") == "held"
        small.step(OutputsCopied(ref=first.ref, copies=(COPY,)), OutputsCopied(ref=third.ref, copies=(COPY,)))
        small.restart()
        assert small.take(StoreOutputs) == []
        small.ask(Release(job=JOB, package="1.2.1"))
        [again] = small.take(StoreOutputs)
        small.step(OutputsCopied(ref=again.ref, copies=(COPY,)))
        assert list(small.standings()) == ["done"]


def test_an_answer_about_another_attempt_changes_nothing() -> None:
    with Small(site()) as small:
        small.submit(bag(1, STORED))
        small.pilot().succeed("1.1.1")
        [wanted] = small.take(StoreOutputs)
        for ref in (
            AttemptRef(JOB, "1.1.1", 2),
            AttemptRef("other", "1.1.1", 1),
            AttemptRef(JOB, "9.9.9", 1),
            AttemptRef(JOB, "x", 1),
        ):
            small.step(OutputsCopied(ref=ref, copies=(COPY,)))
        assert small.status("1.1.1") == "live"
        small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,)), OutputsCopied(ref=wanted.ref, copies=(COPY,)))
        assert small.status("1.1.1") == "done"
        assert len(small.told(file_payloads.OutputsStored, "1.1.1")) == 1


def test_of_two_attempts_that_succeeded_only_the_first_is_stored() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, STORED))
        first = small.pilot("a")
        small.wait(80.0)  # the first is silent, and another attempt starts
        second = small.agent("p", site="b", capacity=small.sites[1].capacity)
        second.exchange()
        assert second.packages == ["1.1.1"]
        second.succeed("1.1.1")
        [wanted] = small.take(StoreOutputs)
        assert wanted.ref.attempt == 2
        first.unread.clear()
        first.succeed("1.1.1")  # it comes back, and has a lower number
        assert small.take(StoreOutputs) == []
        small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,)))
        [granted] = small.told(payloads.CommitGranted, "1.1.1")
        assert granted.attempt == 2
        small.effects.clear()


# --- disposed after the last consumer -------------------------------------------------------------------------------


def test_deletable_outputs_are_disposed_of_after_their_last_consumer() -> None:
    with Small(site()) as small:
        edges = [("1.1.1", "2.1.1"), ("1.1.1", "2.2.1")]
        small.submit(plan(stage(1, DISPOSED), stage(2), edges=edges))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        assert small.told(file_payloads.OutputsDisposed, "1.1.1") == []
        pilot.succeed("2.2.1")
        [disposed] = small.told(file_payloads.OutputsDisposed, "1.1.1")
        assert disposed.attempt == 1
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []


def test_a_dropped_consumer_counts_as_done_and_a_failed_one_does_not() -> None:
    with Small(site()) as small:
        edges = [("1.1.1", "2.1.1"), ("1.1.1", "2.2.1")]
        small.submit(plan(stage(1, DISPOSED), stage(2), edges=edges))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        for _ in range(3):
            pilot.unread.clear()
            if "2.1.1" in pilot.packages:
                pilot.fail("2.1.1", "application-error", message="bad")
            small.wait(30.0, pilot)
        pilot.unread.clear()
        for package in list(pilot.packages):
            pilot.succeed(package)
        assert small.told(file_payloads.OutputsDisposed, "1.1.1") == []
        small.effects.clear()
        pilot.unread.clear()


def test_outputs_that_nobody_reads_stay() -> None:
    with Small(site()) as small:
        small.submit(bag(1, DISPOSED))
        small.pilot().succeed("1.1.1")
        assert small.told(file_payloads.OutputsDisposed, "1.1.1") == []


def test_outputs_that_a_late_stage_may_read_stay_until_it_is_expanded_and_done() -> None:
    with Small(site()) as small:
        made = plan(stage(1, DISPOSED), stage(1), None, edges=[("1.1.1", "2.1.1")], late={3: ["1.1.1"]})
        small.submit(made)
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        small.take(ExpandStage)
        assert small.told(file_payloads.OutputsDisposed, "1.1.1") == []
        small.grow(grown(made, late=3, edges=[("1.1.1", "3.1.1")]), late=3)
        pilot.unread.clear()
        assert small.told(file_payloads.OutputsDisposed, "1.1.1") == []
        pilot.exchange()
        pilot.succeed("3.1.1")
        assert len(small.told(file_payloads.OutputsDisposed, "1.1.1")) == 1


def test_a_restart_that_needs_disposed_outputs_makes_exactly_those_again() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(DISPOSED, DISPOSED, kind("merge"), lines=2))
        pilot = small.pilot()
        for _ in range(3):
            pilot.succeed(*pilot.packages)
        assert list(small.standings()) == ["done"]
        assert len(small.told(file_payloads.OutputsDisposed, "2.1.1")) == 1
        pilot.exchange()
        small.ask(Restart(job=JOB, package="3.1.1"))
        assert [small.status(each) for each in ("1.1.1", "2.1.1", "3.1.1")] == ["live", "blocked", "blocked"]
        assert [small.status(each) for each in ("1.2.1", "2.2.1", "3.2.1")] == ["done"] * 3
        causes = [(one.event.package, one.data.cause) for one in small.book if isinstance(one.data, payloads.Restarted)]
        assert causes == [("3.1.1", "by-hand"), ("2.1.1", "remake"), ("1.1.1", "remake")]
        pilot.unread.clear()
        for _ in range(3):
            pilot.succeed(*pilot.packages)
        assert list(small.standings()) == ["done"]
        assert len(small.told(file_payloads.OutputsDisposed, "2.1.1")) == 2


def test_a_restored_line_has_its_disposed_inputs_made_again() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(1, DISPOSED), stage(2), edges=[("1.1.1", "2.1.1"), ("1.1.1", "2.2.1")]))
        pilot = small.pilot()
        small.ask(Drop(job=JOB, stage=2, line=2))
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        assert len(small.told(file_payloads.OutputsDisposed, "1.1.1")) == 1
        small.ask(Restore(job=JOB, stage=2, line=2))
        assert small.status("2.2.1") == "blocked"
        assert small.status("1.1.1") in ("ready", "reserved", "live")
        pilot.unread.clear()
        small.take(SubmitPilot)
        pilot.exchange()
        pilot.succeed("1.1.1")
        pilot.succeed("2.2.1")
        assert list(small.standings()) == ["done"]
