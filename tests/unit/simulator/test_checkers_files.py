"""Files in caches and stores: for each promise a story that keeps it and one that breaks it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pilotage.model.jobs.file_plan import Wish
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.model.site import Site
from pilotage.simulator.checkers.observer import Rules
from tests.kit.observed import JOB, MANIFEST, MERGE, ONE, PILOT, SHA256, SITE, TWO, Story, broken, merging_plan, ref
from tests.kit.small_plans import with_files

A, B = "s3://store/a", "s3://store/b"
MEBIBYTE = 2**20


def plan(*, wishes: dict[str, Wish] | None = None, released: tuple[str, ...] = (), **template: Any) -> JobPlan:
    """The first package needs one file, the second two, and their outputs are merged."""
    made = merging_plan(Template(activity="work", **template))
    needs = {ONE: [A], TWO: [A, B]}
    return with_files(made, needs, sizes={A: MEBIBYTE, B: MEBIBYTE}, wishes=wishes, released=released)


def story(made: JobPlan | None = None, *, cache_bytes: int | None = None, copies: int = 0) -> Story:
    rules = Rules(sites=(Site(name=SITE, cache_bytes=cache_bytes),), copies={JOB: copies})
    return Story(made or plan(), rules=rules)


def fetched(told: Story, locator: str, key: str = "f1", *, size_bytes: int = MEBIBYTE) -> None:
    """A file arrives, really and in the book."""
    told.at_site("FetchesOrdered", {"locator": locator, "key": key, "size_bytes": size_bytes})
    told.observer.files.on_cached(SITE, locator, key=key, size_bytes=size_bytes, sha256=SHA256)
    told.at_site("FilesFetched", {"locator": locator, "key": key, "size_bytes": size_bytes, "sha256": SHA256})


def removed(told: Story, locator: str, cause: str, *, fetch: str = "f1") -> None:
    """A file is removed, and really gone."""
    told.at_site("RemovalsOrdered", {"locator": locator, "key": "r1", "cause": cause})
    told.observer.files.on_uncached(SITE, locator, key=fetch, ordered=True)
    told.at_site("CachedFilesRemoved", locators=[locator])


# --- fetches and arrivals ---------------------------------------------------------------------------------------------


def test_an_attempt_where_its_files_are_is_right() -> None:
    told = story()
    fetched(told, A)
    told.created(ONE)
    told.pilot()
    told.assigned(ONE)
    told.started(ONE)


def test_an_attempt_before_its_file_has_arrived_is_seen() -> None:
    told = story()
    told.at_site("FetchesOrdered", {"locator": A, "key": "f1"})
    with broken("arrivals", "has not arrived"):
        told.created(ONE)


def test_an_attempt_while_its_file_is_being_removed_is_seen() -> None:
    told = story()
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "space"})
    told.say("Restarted", ONE, epoch=2, cause="by-hand")
    with broken("arrivals", "is being removed"):
        told.created(ONE, 2, epoch=2)


def test_an_attempt_that_really_starts_without_its_file_is_seen_unless_that_was_lost() -> None:
    for ordered in (True, False):
        told = story()
        fetched(told, A)
        told.created(ONE)
        told.pilot()
        told.assigned(ONE)
        told.observer.files.on_uncached(SITE, A, key="f1", ordered=ordered)
        if not ordered:
            told.started(ONE)
            continue
        with broken("arrivals", "is not"):
            told.started(ONE)


def test_another_content_than_the_book_says_is_seen() -> None:
    told = story()
    fetched(told, A)
    told.created(ONE)
    told.pilot()
    told.assigned(ONE)
    told.observer.files.on_cached(SITE, A, key="f2", size_bytes=MEBIBYTE, sha256="1e" * 32)
    with broken("arrivals", "another s3://store/a than the book says"):
        told.started(ONE)


def test_a_file_that_is_fetched_twice_is_seen() -> None:
    told = story()
    fetched(told, A)
    with broken("fetches", "it was there since f1"):
        told.at_site("FetchesOrdered", {"locator": A, "key": "f2"})


def test_a_fetch_beside_another_is_seen() -> None:
    told = story()
    told.at_site("FetchesOrdered", {"locator": A, "key": "f1"})
    with broken("fetches", "while f1 was under way"):
        told.at_site("FetchesOrdered", {"locator": A, "key": "f2"})


def test_a_fetch_after_a_failure_or_a_loss_is_right() -> None:
    told = story()
    told.at_site("FetchesOrdered", {"locator": A, "key": "f1"})
    told.at_site("FetchesFailed", {"locator": A, "key": "f1", "reason": "transfer-failed"})
    fetched(told, A, "f2")
    told.at_site("CachedFilesRemoved", locators=[A])
    fetched(told, A, "f3")


def test_an_arrival_that_nobody_ordered_is_seen() -> None:
    told = story()
    with broken("fetches", "nothing was under way"):
        told.at_site("FilesFetched", {"locator": A, "key": "f1", "size_bytes": 1, "sha256": SHA256})


# --- space ------------------------------------------------------------------------------------------------------------


def test_files_that_fit_are_right_and_one_too_many_is_seen() -> None:
    told = story(cache_bytes=2 * MEBIBYTE - 1)
    fetched(told, A)
    with broken("space", "takes 2097152 of 2097151 bytes"):
        told.at_site("FetchesOrdered", {"locator": B, "key": "f2", "size_bytes": MEBIBYTE})


def test_a_cache_that_really_has_too_much_is_seen() -> None:
    told = story(cache_bytes=2 * MEBIBYTE - 1)
    fetched(told, A)
    with broken("space", "the cache has 2097152 of 2097151 bytes"):
        told.observer.files.on_cached(SITE, B, key="f2", size_bytes=MEBIBYTE, sha256=SHA256)


# --- needs ------------------------------------------------------------------------------------------------------------


def test_removing_what_a_live_attempt_needs_is_seen() -> None:
    told = story()
    fetched(told, A)
    told.created(ONE)
    with broken("needs", f"attempt 1 of {JOB}/{ONE} needs it there"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "space"})


def test_removing_for_space_what_a_waiting_package_needs_is_seen() -> None:
    told = story()
    fetched(told, A)
    with broken("needs", f"{JOB}/{ONE} still needs it"):
        removed(told, A, "space")


def test_removing_for_space_what_no_package_needs_is_right() -> None:
    told = story()
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    removed(told, A, "space")


def test_removing_as_deletable_what_a_waiting_package_needs_is_seen() -> None:
    told = story(plan(wishes={A: Wish.DELETABLE}))
    fetched(told, A)
    told.done(ONE)
    with broken("needs", f"{JOB}/{TWO} still needs it"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "deletable"})


def test_removing_what_a_reserved_package_needs_is_seen() -> None:
    told = story()
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    ordered = told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "space"})
    told.observer.files.on_decided([ordered], {(JOB, ONE): "nice"})
    with broken("needs", "is reserved there"):
        told.observer.files.on_decided([ordered], {(JOB, ONE): SITE})


def test_a_package_that_begins_anew_needs_its_files_again() -> None:
    told = story(plan(wishes={A: Wish.DELETABLE}))
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    told.say("Restarted", ONE, epoch=2, cause="by-hand")
    with broken("needs", f"{JOB}/{ONE} still needs it"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "deletable"})


# --- retention --------------------------------------------------------------------------------------------------------


def test_what_a_job_wants_indefinitely_is_not_removed_for_space() -> None:
    told = story(plan(wishes={A: Wish.RETAIN_INDEFINITELY}))
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    with broken("retention", "wants it indefinitely"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "space"})


def test_the_stickiest_wish_of_two_jobs_counts() -> None:
    told = story(plan(wishes={A: Wish.DELETABLE}))
    told.observer.on_plan("other", plan(wishes={A: Wish.RETAIN_TEMPORARILY}))
    for kind, data in (("JobRegistered", {"owner": "emmy", "name": "o"}), ("JobAccepted", {})):
        told.observer.on_written([told.check(replace(told.event(kind, data=data), job="other"))], 0.0)
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    lease = {"site": SITE, "pilot": PILOT, "lease_seconds": 60.0}
    begun = told.event("AttemptCreated", package=ONE, attempt=1, data=lease)
    told.observer.on_written([told.check(replace(begun, job="other"))], 0.0)
    cancelled = told.event("CancelAccepted", data={})
    told.observer.on_written([told.check(replace(cancelled, job="other"))], 0.0)
    with broken("retention", "RETAIN_TEMPORARILY"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "deletable"})


def test_what_its_owner_released_may_go() -> None:
    told = story(plan(wishes={A: Wish.RETAIN_INDEFINITELY}, released=(A,)))
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    removed(told, A, "deletable")


def test_a_pinned_file_is_removed_only_by_a_purge() -> None:
    told = story(plan(wishes={A: Wish.DELETABLE}))
    fetched(told, A)
    fetched(told, B)
    told.at_site("RetentionSet", {"locator": A, "pinned": True, "owner": "ada"})
    told.done(ONE, TWO)
    with broken("retention", "ada pinned it"):
        told.at_site("RemovalsOrdered", {"locator": A, "key": "r1", "cause": "deletable"})


# --- leftovers --------------------------------------------------------------------------------------------------------


def test_a_deletable_file_that_nobody_needs_does_not_stay() -> None:
    told = story(plan(wishes={A: Wish.DELETABLE}))
    fetched(told, A)
    fetched(told, B)
    told.done(ONE)
    told.observer.files.check_finished()  # the other package needs it
    told.done(TWO)
    with broken("leftovers", "nobody needs it, and nobody wants it"):
        told.observer.files.check_finished()
    removed(told, A, "deletable")
    told.observer.files.check_finished()


def test_a_file_that_the_book_does_not_know_is_left_over() -> None:
    told = story()
    told.observer.files.on_cached(SITE, A, key="f1", size_bytes=1, sha256=SHA256)
    with broken("leftovers", "the book does not know it"):
        told.observer.files.check_finished()


def test_a_draft_is_left_over() -> None:
    with broken("leftovers", "the draft of f1"):
        story().observer.files.check_left_over({SITE: {"name": "f1"}})


# --- outputs ----------------------------------------------------------------------------------------------------------


def stored(told: Story, *locators: str) -> None:
    """The outputs of the first package are copied, and the book says so."""
    for locator in locators:
        told.observer.files.on_copied(ref(ONE), locator=locator, sha256=SHA256)
    copies = [{**MANIFEST[0], "locator": locator} for locator in locators]
    told.say("OutputsStored", ONE, 1, data={"copies": copies})


def finished(told: Story) -> None:
    fetched(told, A)
    told.created(ONE)
    told.finished(ONE)


def test_a_grant_of_what_is_stored_as_often_as_asked_is_right() -> None:
    told = story(plan(stores_outputs=True), copies=2)
    finished(told)
    stored(told, "s3://1/a", "s3://2/a")
    told.granted(ONE)


def test_a_grant_before_the_copies_is_seen() -> None:
    told = story(plan(stores_outputs=True), copies=2)
    finished(told)
    with broken("copies", "no copies of its outputs were verified"):
        told.granted(ONE)


def test_a_grant_with_a_copy_too_few_or_another_content_is_seen() -> None:
    told = story(plan(stores_outputs=True), copies=2)
    finished(told)
    stored(told, "s3://1/a", "s3://2/a")
    told.observer.files.on_copied(ref(ONE, 2), locator="s3://2/a", sha256="1e" * 32)
    with broken("copies", "1 of 2 copies"):
        told.granted(ONE)


def test_a_grant_after_a_failed_copy_is_seen() -> None:
    told = story(plan(stores_outputs=True), copies=1)
    finished(told)
    failed = {"name": "a.dat", "locator": "s3://1/a", "reason": "store-unreachable"}
    told.say("OutputsStored", ONE, 1, data={"failed": [failed]})
    with broken("copies", "had failed"):
        told.granted(ONE)


def disposing() -> Story:
    told = story(plan(disposes_outputs=True))
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO)
    return told


def test_outputs_that_all_have_read_are_disposed_of_once() -> None:
    told = disposing()
    told.done(MERGE)
    told.say("OutputsDisposed", ONE, 1)
    with broken("disposal", "twice"):
        told.say("OutputsDisposed", ONE, 1)


def test_disposal_before_the_last_reader_is_done_is_seen() -> None:
    told = disposing()
    told.created(MERGE)
    with broken("disposal", f"{MERGE} may still read them"):
        told.say("OutputsDisposed", ONE, 1)


def test_an_attempt_that_would_read_what_was_disposed_of_is_seen() -> None:
    told = disposing()
    told.done(MERGE)
    told.say("OutputsDisposed", ONE, 1)
    told.say("Restarted", MERGE, epoch=2, cause="by-hand")
    with broken("disposal", f"the outputs of {ONE} were disposed of"):
        told.created(MERGE, 2, epoch=2)


def test_a_remade_output_can_be_read_again() -> None:
    told = disposing()
    told.done(MERGE)
    told.say("OutputsDisposed", ONE, 1)
    told.say("OutputsDisposed", TWO, 1)
    for package in (ONE, TWO, MERGE):
        told.say("Restarted", package, epoch=2, cause="by-hand")
    told.done(ONE, TWO, MERGE, attempt=2, epoch=2)


def test_deletable_outputs_do_not_stay_when_all_have_read_them() -> None:
    told = disposing()
    told.observer.files.check_finished()
    told.done(MERGE)
    with broken("disposal", "still there"):
        told.observer.files.check_finished()


def test_disposal_of_what_is_to_be_kept_is_seen() -> None:
    told = story()
    fetched(told, A)
    fetched(told, B)
    told.done(ONE, TWO, MERGE)
    with broken("disposal", "none of them is deletable"):
        told.say("OutputsDisposed", ONE, 1)
