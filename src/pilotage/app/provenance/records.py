"""The records of a state folder: opened for reading next to a service, or for maintenance without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.state_folder import SystemClock, local_user
from pilotage.model.errors import extra, missing_extra
from pilotage.model.settings.settings import Settings

if TYPE_CHECKING:
    from pilotage.adapters.records.copies import PackCopies
    from pilotage.ports import AttemptLogs, Journal
    from pilotage.ports.records import Collected, Damage, RecordStore
    from pilotage.service.journal.recording import OpenRecords, RecordKeeping

RECORDS_FOLDER = "records"
"""In the state folder: the primary storage of records."""


def records_folder(settings: Settings) -> Path:
    """Where the records of these settings are."""
    return state_folder(settings, folder=Path.cwd()) / RECORDS_FOLDER


def open_records(state: Path, *, writes: bool = False, copies: PackCopies | None = None) -> RecordStore:
    """The records of a state folder. Raises `NoRecords` where there are none to read, and `RecordStoreError`."""
    with extra("provenance", purpose="to keep records of jobs"):
        from pilotage.adapters.records.folder import FolderRecords
    return FolderRecords(state / RECORDS_FOLDER, writes=writes, copies=copies)


def copies_of(settings: Settings, *, url: str = "", takes_over: bool = False) -> PackCopies | None:
    """Where copies of records are: at a URL, else as the settings say; perhaps taken over from another folder. Raises `RecordStoreError`."""
    from pilotage.adapters.records.copies import PackCopies
    from pilotage.app.store_registry import open_stores
    from pilotage.model.errors import PilotageError
    from pilotage.ports.records import RecordStoreError

    place = url or settings.provenance.storage
    if not place:
        return None
    try:
        return PackCopies(open_stores(settings).find(place).store, place, takes_over=takes_over)
    except PilotageError as fault:
        raise RecordStoreError(
            f"provenance.storage cannot be used: {fault.what}", subject=fault.subject, next_step=fault.next_step
        ) from fault


def fetch_records(settings: Settings, url: str, folder: Path) -> None:
    """Bring the records of a store into an empty folder, verified, from which they can be read."""
    with extra("provenance", purpose="to read records of jobs"):
        from pilotage.adapters.records.folder import FolderRecords, bring_back
    copies = copies_of(settings, url=url)
    assert copies is not None
    copies.refuse_empty()
    bring_back(folder, copies)
    FolderRecords(folder).close()


def open_records_for(settings: Settings, state: Path) -> OpenRecords | None:
    """Opens the records of a service; None if its settings keep none. Raises `MissingExtra`."""
    wanted = settings.provenance.records
    if wanted == "no" or (wanted == "auto" and missing_extra("provenance")):
        return None
    if missing_extra("provenance"):
        with extra("provenance", purpose="to keep records of jobs (setting provenance.records)"):
            raise ImportError("zstandard is not installed", name="zstandard")

    def opened(*, writes: bool = False) -> RecordStore:
        return open_records(state.absolute(), writes=writes, copies=copies_of(settings) if writes else None)

    return opened


@contextmanager
def records_beside(settings: Settings, journal: Journal) -> Iterator[RecordKeeping | None]:
    """What makes the records of a book that no service has; None if its settings keep none."""
    from pilotage.app.job_stores import open_job_stores
    from pilotage.service.journal.recording import RecordKeeping

    state = state_folder(settings, folder=Path.cwd())
    opening = open_records_for(settings, state)
    if opening is None:
        yield None
        return
    with ExitStack() as stack:

        @cache
        def logs() -> AttemptLogs:
            stores = open_job_stores(state)
            stack.callback(stores.close)
            return stores.logs

        keeping = RecordKeeping(
            journal, settings=settings.provenance, open_store=opening, clock=SystemClock(), logs=logs, writes=False
        )
        stack.callback(keeping.close)
        yield keeping


@contextmanager
def _opened(settings: Settings, *, writes: bool) -> Iterator[RecordStore]:
    from pilotage.service.announcement import refuse_second

    state = state_folder(settings, folder=Path.cwd())
    open_records(state).close()
    if writes:
        refuse_second(state)
    store = open_records(state, writes=writes, copies=copies_of(settings))
    try:
        yield store
    finally:
        store.close()


def take_over(settings: Settings) -> str:
    """Let the records of this folder be copied to the store of the settings from now on, whichever folder was before; its URL.

    Raises `RecordStoreError`, also where the folder has other records than the store.
    """
    from pilotage.ports.records import RecordStoreError
    from pilotage.service.announcement import refuse_second

    copies = copies_of(settings, takes_over=True)
    if copies is None:
        raise RecordStoreError(
            "these settings name no store for a copy of the records", next_step="set provenance.storage"
        )
    state = state_folder(settings, folder=Path.cwd())
    refuse_second(state)
    open_records(state, writes=True, copies=copies).close()
    return settings.provenance.storage


def find_damage(settings: Settings) -> Iterator[Damage]:
    """Read all records and parts, also next to a service, and name what is damaged or missing."""
    with _opened(settings, writes=False) as store:
        yield from store.check()


def next_step(found: Sequence[Damage]) -> str:
    """What to do about damage; empty where nothing but a copy of the storage helps."""
    from pilotage.ports.records import MAKE_CATALOGUE_AGAIN

    return MAKE_CATALOGUE_AGAIN if any(each.place == "catalogue.sqlite" for each in found) else ""


def collect_parts(settings: Settings, *, dry_run: bool) -> Collected:
    """Remove the parts that no record needs, or only count them. No service may run, unless they are only counted."""
    with _opened(settings, writes=not dry_run) as store:
        return store.collect(dry_run=dry_run)


def delete_records(settings: Settings, jobs: tuple[str, ...]) -> list[str]:
    """Delete the records of jobs, and return the jobs that had one; their parts stay until they are collected."""
    with _opened(settings, writes=True) as store:
        now, author = SystemClock().now(), local_user()
        return [job for job in jobs if store.delete(job, at=now, author=author)]
