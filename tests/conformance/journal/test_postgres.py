"""What only PostgreSQL can do to a journal: restart, end a session, give the lock to somebody else, run out of room."""

from __future__ import annotations

import contextlib
import threading
from contextlib import closing
from typing import cast

import psycopg
import pytest

from pilotage.adapters.journals.postgres.connection import Server, journal_error, stored_json, stored_text
from pilotage.adapters.journals.postgres.journal import PostgresJournal, PostgresReader
from pilotage.adapters.journals.postgres.lifecycle import JobPlace, Mover
from pilotage.adapters.journals.postgres.schema import MIGRATIONS, Migration
from pilotage.book.query import EVERYTHING
from pilotage.book.rows import rows
from pilotage.book.rows.ledger import Changes
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptStarted, Noted
from pilotage.ports import JournalBusy, JournalError, JournalFull, JournalLost, JournalUnavailable
from pilotage.service.journal.writer import BatchCommitter
from tests.conformance.journal.harness import PostgresHarness, content, keeper
from tests.engines.postgres import PostgresServer
from tests.kit.events import AWKWARD, Stream, a_short_job, registered, shape
from tests.kit.waiting import wait_until


def end_sessions(store: PostgresHarness, name: str) -> int:
    """End the sessions of a name as an administrator would, and wait until they are gone."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            (name + "%",),
        ).fetchall()
    return len(ended)


def send(taking: BatchCommitter, events: list[Event]) -> None:
    """Send until it is acknowledged, as a courier does."""
    for _ in range(100):
        try:
            receipt = taking.take(events)
        except JournalUnavailable:
            continue
        assert receipt.refused == []
        return
    pytest.fail("never acknowledged")


def test_a_session_ended_between_batches_is_not_even_noticed(store: PostgresHarness) -> None:
    taking = keeper(store.open())
    events = a_short_job()
    taking.take(events[:3])
    assert end_sessions(store, "pilotage writer") == 1
    taking.take(events[3:])
    assert len(store.rows(rows.EventRow)) == len(events)


def test_a_session_ended_in_a_transaction_undoes_it_and_can_be_tried_again(store: PostgresHarness) -> None:
    journal = store.open()

    def interrupted() -> None:
        with journal.transaction() as ledger:
            ledger.next_job_id()
            end_sessions(store, "pilotage writer")
            ledger.position()
            list(ledger.jobs(["j1"]))

    with pytest.raises(JournalUnavailable) as caught:
        interrupted()
    assert caught.value.retryable
    with journal.transaction() as ledger:
        assert ledger.next_job_id() == 1


def test_a_fault_that_was_swallowed_is_not_taken_for_a_commit(store: PostgresHarness) -> None:
    journal = store.open()

    def swallow() -> None:
        with journal.transaction() as ledger:
            ledger.write(Changes(streams=[rows.StreamRow(stream_id=1, source="agent", stream="s1")]))
            with contextlib.suppress(psycopg.Error):
                ledger.write(Changes(tags=[rows.TagRow(job_id=2**70, stage=0, line=0, number=0, name="", value="")]))

    with pytest.raises(JournalError, match="rolled back"):
        swallow()
    assert store.rows(rows.StreamRow) == []
    with journal.transaction():
        pass


def test_the_lock_is_taken_again_after_a_lost_connection(store: PostgresHarness) -> None:
    journal = store.open()
    end_sessions(store, "pilotage writer")
    with journal.transaction():
        pass
    with pytest.raises(JournalBusy):
        store.open()


def taken_over(store: PostgresHarness, first: PostgresJournal) -> PostgresJournal:
    """Another writer, which was quicker to take the lock of a session that was ended."""
    with first._writing:  # as if something were being written there
        end_sessions(store, "pilotage writer")
        return cast("PostgresJournal", store.open())


def opened(store: PostgresHarness) -> PostgresJournal:
    return cast("PostgresJournal", store.open())


def test_a_writer_whose_lock_somebody_else_has_taken_gives_up_for_good(store: PostgresHarness) -> None:
    first = opened(store)
    second = taken_over(store, first)
    with pytest.raises(JournalLost, match="another process writes this book now") as caught, first.transaction():
        pass
    assert "start this one again" in caught.value.next_step
    keeper(second).take(a_short_job())
    second.close()
    # The lock is free, and the book is not what it was: what it would decide now rests on what is no longer so.
    with pytest.raises(JournalLost):
        keeper(first).take(a_short_job("j2"))
    assert first.position() == len(a_short_job())


def test_an_idle_writer_notices_at_once_that_its_session_was_ended_and_takes_the_lock_again(
    store: PostgresHarness, postgres_server: PostgresServer
) -> None:
    journal = opened(store)
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    (before,) = store.execute(holders)
    end_sessions(store, "pilotage writer")
    wait_until(lambda: store.execute(holders) not in ([], [before]), lambda: "nobody took the lock again", seconds=60)
    wait_until(lambda: not journal.trouble, lambda: "it holds the lock, and says that it does not", seconds=60)
    assert not journal.lost
    postgres_server.stop(immediate=True)
    wait_until(lambda: journal.trouble, lambda: "nobody noticed that the server is down", seconds=60)
    assert not journal.lost
    postgres_server.start()
    wait_until(lambda: not journal.trouble, lambda: "nobody noticed that the server is back", seconds=60)
    with pytest.raises(JournalBusy):
        store.open()
    assert keeper(journal).take(a_short_job()).kept == len(a_short_job())


def test_an_idle_writer_notices_by_itself_that_another_was_there_meanwhile(store: PostgresHarness) -> None:
    first = opened(store)
    taken_over(store, first).close()
    wait_until(lambda: first.lost, lambda: "nobody noticed that the book is another's", seconds=60)
    assert first.trouble == first.lost
    assert "another process has written this book meanwhile" in first.lost
    assert "start this one again" in first.lost


def test_no_transaction_is_written_past_the_one_who_took_the_book_over(store: PostgresHarness) -> None:
    journal = opened(store)
    keeper(journal).take(a_short_job())
    # As behind a pooler that gives its sessions to others: the connection lives, and the lock is somebody else's.
    store.execute("UPDATE counters SET value = value + 1 WHERE name = 'generation'")
    for write in (lambda: keeper(journal).take(a_short_job("j2")), lambda: journal.put_content(b"x")):
        with pytest.raises(JournalLost, match="another process has written this book meanwhile"):
            write()
    assert journal.lost
    assert [row.job for row in store.rows(rows.JobRow)] == ["j1"]


def test_books_in_two_schemas_of_one_database_do_not_meet(store: PostgresHarness) -> None:
    store.execute("CREATE SCHEMA other")
    keeper(store.open()).take(a_short_job())
    other = PostgresHarness(f"{store.url}?options=-csearch_path%3Dother")
    try:
        taking = keeper(other.open())
        assert content(other)["jobs"] == {}
        assert taking.take(a_short_job("j2")).kept
        assert set(content(other)["jobs"]) == {("j2",)}
        assert set(content(store)["jobs"]) == {("j1",)}
    finally:
        other.close()


def test_reading_goes_on_after_every_reading_session_was_ended(store: PostgresHarness) -> None:
    journal = store.open()
    keeper(journal).take(a_short_job())
    assert journal.position() == len(a_short_job())
    assert end_sessions(store, "pilotage reader") == 1
    assert journal.position() == len(a_short_job())


def test_a_long_reading_whose_session_was_ended_says_so_and_can_begin_anew(store: PostgresHarness) -> None:
    journal = store.open()
    keeper(journal).take(a_short_job(packages=30))
    job = journal.live_jobs()[0]
    assert end_sessions(store, "pilotage reader") == 1
    assert len(list(journal.finals(job))) == 30  # an idle session that is gone is not even noticed
    with pytest.MonkeyPatch.context() as few:
        few.setattr("pilotage.adapters.journals.postgres.reader._ROWS_AT_ONCE", 10)
        reading = journal.finals(job)
        assert next(reading).line == 1
        assert end_sessions(store, "pilotage reader") == 1
        with pytest.raises(JournalUnavailable):
            list(reading)
    assert len(list(journal.finals(job))) == 30


def test_a_server_that_is_down_is_said_to_be_so_and_used_again_when_it_is_back(
    store: PostgresHarness, postgres_server: PostgresServer
) -> None:
    journal = store.open()
    taking = keeper(journal)
    taking.take(a_short_job())
    postgres_server.stop(immediate=True)
    with pytest.raises(JournalUnavailable):
        taking.take(a_short_job("j2"))
    with pytest.raises(JournalUnavailable):
        journal.position()
    with pytest.raises(JournalUnavailable) as caught:
        store.open()
    assert "password" not in str(caught.value)
    postgres_server.start()
    assert taking.take(a_short_job("j2")).kept == len(a_short_job())
    assert journal.position() == 2 * len(a_short_job())


@pytest.mark.parametrize("round_", range(3))
def test_a_server_that_crashes_in_mid_batch_loses_and_doubles_nothing(
    store: PostgresHarness, postgres_server: PostgresServer, round_: int
) -> None:
    journal = store.open()
    taking = keeper(journal)
    events = a_short_job(packages=400)
    acknowledged: list[Event] = []
    enough = threading.Event()
    unsure: list[list[Event]] = []

    def write() -> None:
        for start in range(0, len(events), 20):
            some = events[start : start + 20]
            try:
                taking.take(some)
            except JournalUnavailable:
                unsure.append(some)
                enough.set()
                return
            acknowledged.extend(some)
            if len(acknowledged) > 100 * (round_ + 1):
                enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    enough.wait()
    postgres_server.restart(immediate=True)
    writer.join()
    stored = {(row.n) for row in store.rows(rows.EventRow)}
    assert {event.n for event in acknowledged} <= stored
    # Whoever got no answer sends again; whether it was kept or not, it is there once.
    again = keeper(journal)
    for start in range(0, len(events), 20):
        send(again, events[start : start + 20])
    found = store.rows(rows.EventRow)
    assert sorted(row.n for row in found) == sorted(event.n for event in events)
    assert sorted(row.position for row in found) == list(range(1, len(events) + 1))
    assert {row.facts.state for row in store.packages()} == {"DONE"}
    assert [(row.done, row.state) for row in store.rows(rows.JobRow)] == [(400, "DONE")]


def test_sessions_ended_at_any_moment_lose_and_double_nothing(store: PostgresHarness) -> None:
    journal = store.open()
    taking = keeper(journal)
    events = a_short_job(packages=300)
    done = threading.Event()

    def write() -> None:
        try:
            for start in range(0, len(events), 15):
                send(taking, events[start : start + 15])
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    ended = 0
    while not done.is_set() and ended < 20:
        ended += end_sessions(store, "pilotage writer")
    writer.join()
    assert ended
    found = store.rows(rows.EventRow)
    assert sorted(row.n for row in found) == sorted(event.n for event in events)
    assert sorted(row.position for row in found) == list(range(1, len(events) + 1))
    assert [(row.done, row.state) for row in store.rows(rows.JobRow)] == [(300, "DONE")]


def test_an_older_schema_is_brought_up_to_date_and_keeps_what_it_held(store: PostgresHarness) -> None:
    keeper(store.open()).take(a_short_job())
    before = content(store)
    store.close()
    wider = Migration(
        len(MIGRATIONS) + 1,
        ("CREATE TABLE {schema}.extra (n bigint)", "CREATE VIEW {sealed}.extra AS SELECT * FROM {schema}.jobs"),
    )
    store.open(migrations=[*MIGRATIONS, wider])
    assert store.schema_version() == wider.version
    assert store.execute("SELECT count(*) FROM extra") == [(0,)]
    assert content(store) == before
    store.close()
    with pytest.raises(JournalError, match="newer pilotage"):
        store.open()


def test_a_migration_that_fails_changes_nothing(store: PostgresHarness) -> None:
    store.open()
    store.close()
    bad = Migration(
        len(MIGRATIONS) + 1, ("CREATE TABLE {schema}.extra (n bigint)", "CREATE TABLE {schema}.jobs (n int)")
    )
    with pytest.raises(JournalError, match="already exists"):
        store.open(migrations=[*MIGRATIONS, bad])
    assert store.schema_version() == MIGRATIONS[-1].version
    assert store.execute("SELECT to_regclass('extra')") == [(None,)]
    store.open()


def test_a_schema_is_never_migrated_under_a_writer(store: PostgresHarness) -> None:
    store.open()
    wider = Migration(len(MIGRATIONS) + 1, ("CREATE TABLE {schema}.extra (n bigint)",))
    with pytest.raises(JournalBusy):
        store.open(migrations=[*MIGRATIONS, wider])
    assert store.schema_version() == MIGRATIONS[-1].version


def test_indexes_follow_the_setting(store: PostgresHarness) -> None:
    named = "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND indexname ~ 'owner|site|node|value'"
    store.open(indexed=frozenset({"owner", "node"}))
    owners = {name for (name,) in store.execute(named)}
    assert {"jobs_owner_job", "package_facts_node"} <= owners
    assert "package_facts_site" not in owners
    store.close()
    store.open(indexed=frozenset({"site", "tag"}))
    sites = {name for (name,) in store.execute(named)}
    assert {"package_facts_site", "tags_name_value_job_id_stage_line_number"} <= sites
    assert not {"jobs_owner_job", "package_facts_node"} & sites


def test_a_commit_costs_the_same_number_of_statements_however_many_rows_it_has(store: PostgresHarness) -> None:
    journal = store.open()
    assert isinstance(journal, PostgresJournal)
    taking = keeper(journal)
    spoken = _Spoken(journal._writer.connection())
    journal._writer._connection = spoken  # type: ignore[assignment]
    statements = []
    for count in (2, 300):
        job = f"j{count}"
        taking.take([Stream(stream=job).event(registered(shape("simulate", lines=count)), job=job)])
        spoken.statements = 0
        events = [
            Stream("agent", f"{job}-{line}").event(AttemptStarted(), job=job, package=f"1.{line}.1", attempt=1)
            for line in range(1, count + 1)
        ]
        assert taking.take(events).kept == count
        assert taking.take(events).repeated == count
        statements.append(spoken.statements)
    assert statements[0] == statements[1]
    journal._writer._connection = spoken.connection


class _Spoken:
    """A connection that counts what is said on it."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self.connection = connection
        self.statements = 0

    def execute(self, *what: object, **how: object) -> object:
        self.statements += 1
        return self.connection.execute(*what, **how)  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)


@pytest.mark.parametrize("steps", [1, 3, 6, 8])
@pytest.mark.parametrize("place", ["sealed", "live", "purged"])
def test_a_move_that_is_broken_off_hides_nothing_and_is_taken_up_again(
    store: PostgresHarness, place: JobPlace, steps: int
) -> None:
    journal = store.open()
    assert isinstance(journal, PostgresJournal)
    keeper(journal).take(a_short_job(packages=5))
    if place == "live":
        journal.seal("j1")
    before = journal.job("j1")
    assert before is not None
    told_before = journal.find_events(EVERYTHING, after=0, limit=100, job=before).items
    mover = _Broken(journal._transaction, journal._schemas, slice_rows=3)
    mover.steps = steps
    match place:
        case "sealed":
            mover.seal("j1")
        case "live":
            mover.unseal(["j1"])
        case "purged":
            mover.purge("j1", at=1.0)
    if place != "purged":
        assert journal.find_events(EVERYTHING, after=0, limit=100, job=before).items == told_before
        assert journal.count_packages(EVERYTHING, job=before) == 5
        assert len(journal.stages(before)) == 1
    again = store.reopen()
    after = again.job("j1")
    assert after is not None
    assert after.place == place
    assert store.execute("SELECT * FROM moves") == []
    left = {"sealed": (0, 17, 17), "live": (17, 0, 17), "purged": (0, 0, 0)}[place]
    live, sealed = (store.execute(f"SELECT count(*) FROM {name}")[0][0] for name in ("events", "sealed.events"))
    found = again.find_events(EVERYTHING, after=0, limit=100, job=after).items
    assert (live, sealed, len(found)) == left


class _Broken(Mover):
    """A mover that is broken off after some slices."""

    steps = 0

    def _go_on(self, job_id: int, place: JobPlace) -> None:
        for _ in range(self.steps):
            self._step(job_id, place)


def test_a_job_that_is_wanted_back_while_it_leaves_comes_back(store: PostgresHarness) -> None:
    journal = store.open()
    assert isinstance(journal, PostgresJournal)
    keeper(journal).take(a_short_job(packages=5))
    before = content(store)
    mover = _Broken(journal._transaction, journal._schemas, slice_rows=3)
    mover.steps = 2
    mover.seal("j1")
    late = Stream("client", "late").event(Noted(text="late"), job="j1", package="1.1.1")
    assert keeper(journal).take([late]).kept == 1
    row = journal.job("j1")
    assert row is not None
    assert row.place == "live"
    # The seal that was under way finds that somebody else has taken over, and leaves the job alone.
    assert not mover._step(row.job_id, "sealed")
    assert content(store)["stages"] == before["stages"]
    assert len(store.rows(rows.EventRow)) == len(before["events"]) + 1


@pytest.mark.parametrize(
    "fault, meaning",
    [
        (psycopg.errors.DiskFull(), JournalFull),
        (psycopg.errors.AdminShutdown(), JournalUnavailable),
        (psycopg.errors.CannotConnectNow(), JournalUnavailable),
        (psycopg.errors.DeadlockDetected(), JournalUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction(), JournalUnavailable),
        (psycopg.OperationalError("the connection is lost"), JournalUnavailable),
        (psycopg.InterfaceError("the connection is closed"), JournalUnavailable),
        (psycopg.errors.UniqueViolation(), JournalError),
        (psycopg.errors.InsufficientPrivilege(), JournalError),
        (psycopg.errors.QueryCanceled(), JournalError),
    ],
)
def test_faults_are_told_apart_by_whether_trying_again_helps(fault: psycopg.Error, meaning: type[JournalError]) -> None:
    assert type(journal_error(fault, where="here")) is meaning


def test_a_bad_address_is_refused_without_showing_its_password() -> None:
    with pytest.raises(JournalError) as caught:
        PostgresJournal("postgresql://ada:secret@[::1/book")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_a_url_says_of_the_connection_is_heeded_and_the_rest_is_ours(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    with closing(Server(f"{url}?keepalives_idle=7").connect("a test")) as connection:
        told_of = connection.info.get_parameters()
    assert (told_of["keepalives_idle"], told_of["keepalives_interval"]) == ("7", "10")
    postgres_server.drop(url)


def test_a_database_that_cannot_store_every_character_is_refused(postgres_server: PostgresServer) -> None:
    url = postgres_server.database(template="template0", encoding="LATIN1")
    with pytest.raises(JournalError, match=r"cannot store every character.*UTF8.*LATIN1"):
        PostgresJournal(url)
    postgres_server.drop(url)


def test_whoever_finds_no_book_to_read_leaves_no_session_behind(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    with pytest.raises(JournalError, match="no book that this version can read") as caught:
        PostgresReader(url)
    left = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(lambda: not connection.execute(left).fetchall(), lambda: f"sessions left by: {caught}", seconds=20)
    postgres_server.drop(url)


@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_no_text_is_stored_with_a_nul(text: str) -> None:
    assert "\x00" not in stored_text(text)
    assert stored_text(text) == text or "\x00" in text or "\x1a" in text
    assert stored_json('"\\\\u0000 \\u001A \\u0000"') == '"\\\\u0000 \\u001A1 \\u001a0"'


def test_the_views_of_sealed_jobs_name_the_job_and_the_package(store: PostgresHarness) -> None:
    journal = store.open()
    keeper(journal).take(a_short_job("j1"))
    journal.seal("j1")
    for view in ("packages", "attempts", "phases", "files"):
        found = {tuple(row) for row in store.execute(f"SELECT job, package FROM sealed.{view}")}
        assert found == {("j1", "1.1.1"), ("j1", "1.2.1")}, view
        assert store.execute(f"SELECT * FROM {view}") == [], view
