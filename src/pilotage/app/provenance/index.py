"""Finds records: in the index of a state folder, or at an index server; opens and feeds the index of such a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.provenance.records import RECORDS_FOLDER, open_records
from pilotage.model.errors import PilotageError, extra
from pilotage.model.settings.settings import Settings

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.ports.record_index import FoundRecord, IndexedAttributes, RecordIndex
    from pilotage.ports.records import RecordStore
    from pilotage.provenance.index.feed import FeedBatch, FeedRegistration

log = logging.getLogger(__name__)

INDEX_FILE = "index.sqlite"
"""In the folder of the records: the index that `find` keeps by itself."""
_HERE = "records"  # the one storage of that index
FEED_PATH = "/v1/feeds"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a query found: job ids, and where their records lie."""

    index: str
    records: tuple[FoundRecord, ...]
    next: str | None = None


# --- the index of a state folder ---


def index_here(settings: Settings) -> AbstractContextManager[RecordIndex]:
    """The index of a state folder, up to date with its records. Raises `NoRecords`."""
    state = state_folder(settings, folder=Path.cwd())
    return index_in(state / RECORDS_FOLDER, open_store=lambda: open_records(state))


@contextmanager
def index_in(folder: Path, *, open_store: Callable[[], RecordStore]) -> Iterator[RecordIndex]:
    """The index of a folder of records, up to date with them. Raises what `open_store` does, and `RecordIndexError`."""
    from pilotage.ports.record_index import IndexQuery
    from pilotage.provenance.index.attributes import DEFAULT
    from pilotage.provenance.index.feed import CheckedFeed, StoreSource, bring_up_to_date

    with ExitStack() as stack:
        store = open_store()
        stack.callback(store.close)
        index = _open_embedded(folder / INDEX_FILE, DEFAULT)
        stack.callback(index.close)
        feed = CheckedFeed(name=_HERE, attributes=DEFAULT, query=IndexQuery())
        bring_up_to_date(index, _HERE, StoreSource(store, feed))
        yield index


def _open_embedded(file: Path, attributes: IndexedAttributes) -> RecordIndex:
    """The index in a file; one that is damaged, or of other attributes, is made again from the records."""
    from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
    from pilotage.ports.record_index import OtherAttributes, RecordIndexError

    try:
        return SqliteRecordIndex(file, attributes=attributes)
    except OtherAttributes:
        return SqliteRecordIndex(file, attributes=attributes, rebuild=True)
    except RecordIndexError as fault:
        if "malformed" not in fault.what and "not a database" not in fault.what:
            raise
        log.warning("the index is made again from the records: %s", fault)
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return SqliteRecordIndex(file, attributes=attributes)


def find_here(settings: Settings, text: str, *, limit: int, after: str | None = None) -> Found:
    """What a query finds among the records of a state folder. Raises `QueryError`, `QueryTooBroad` and `NoRecords`."""
    from pilotage.provenance.index.search import answer_query

    with index_here(settings) as index:
        found = answer_query(index, text, principal=None, now=time.time(), limit=limit, after=after)
    where = str((state_folder(settings, folder=Path.cwd()) / RECORDS_FOLDER).absolute())
    records = tuple(msgspec.structs.replace(each, storage=where) for each in found.records)
    return Found(index=str(Path(where) / INDEX_FILE), records=records, next=found.next)


# --- an index server, asked ---


def find_at(server: Server, text: str, *, limit: int, after: str | None = None) -> Found:
    """What a query finds at an index server."""
    from pilotage.ports.record_index import FoundRecords

    answer = server.get("/v1/records/find", {"query": text, "limit": limit, "cursor": after})
    found = msgspec.convert(answer, FoundRecords)
    return Found(index=server.url, records=found.records, next=found.next)


# --- an index server, run ---


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A storage of records: the URL of its service, or its folder on this computer; and the file of its token."""

    server: Annotated[str, Meta(min_length=1)]
    token_file: str = ""

    @property
    def name(self) -> str:
        """The name of the storage in the index."""
        return self.server.rstrip("/") if "://" in self.server else str(Path(self.server).absolute())


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of an index server; without attributes it keeps all."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] = "index"
    folder: str = "index"
    database: str = ""  # postgresql://…; empty: a file of SQLite in the folder
    storages: tuple[StorageConfig, ...] = ()
    attributes: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()
    query: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    batch: Annotated[int, Meta(ge=1, le=500)] = 500  # changes that are asked for at once
    poll_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 2.0
    tls_certificate: str = ""
    tls_key: str = ""


class BadIndexConfig(PilotageError):
    """The configuration of an index server cannot be used."""


def read_config(file: Path) -> IndexConfig:
    """The configuration in a file, in TOML. Raises `BadIndexConfig`."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=IndexConfig)
    except OSError as fault:
        raise BadIndexConfig("cannot be read", subject=str(file), got=fault.strerror or str(fault)) from fault
    except msgspec.DecodeError as fault:
        known = ", ".join(IndexConfig.__struct_fields__)
        raise BadIndexConfig(str(fault), subject=str(file), next_step=f"known fields: {known}") from fault


def changed_config(config: IndexConfig, changes: Mapping[str, object]) -> IndexConfig:
    """The configuration with other fields, checked. Raises `BadIndexConfig`."""
    changed = msgspec.to_builtins(msgspec.structs.replace(config, **changes))
    try:
        return msgspec.convert(changed, IndexConfig)
    except msgspec.ValidationError as fault:
        raise BadIndexConfig(str(fault), subject="the options of the index") from fault


Connect = Callable[[StorageConfig], "Server"]
"""Connects to the service of a storage; raises `ServerError`, such as while it does not run."""


class HttpSource:
    """A storage that feeds an index over HTTP; the index registers again if the storage does not know it."""

    def __init__(self, connect: Callable[[], Server], registration: FeedRegistration, *, limit: int) -> None:
        """Take what connects to the service, what the index wants, and the most changes of a batch."""
        self._limit = limit
        self._connect = connect
        self._registration = registration
        self._server: Server | None = None

    def batch(self, *, after: int) -> FeedBatch:
        """What changed after a position. Raises a `PilotageError`; the next batch begins with a new connection then."""
        from pilotage.provenance.index.feed import FeedBatch

        try:
            if self._server is None:
                self._server = self._connect()
                self._server.post(FEED_PATH, self._registration)
            answer = self._server.get(f"{FEED_PATH}/{self._registration.name}", {"after": after, "limit": self._limit})
            return msgspec.convert(answer, FeedBatch)
        except msgspec.ValidationError as fault:
            raise BadIndexConfig(
                f"the storage answers in another way: {fault}", subject=self._registration.name
            ) from fault
        except PilotageError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


def feed_index(config: IndexConfig, *, connect: Connect, rebuild: bool = False) -> Mapping[str, int]:
    """Bring an index up to date with its storages, and return how far each was read."""
    from pilotage.provenance.index.feed import bring_up_to_date
    from pilotage.service.announcement import refuse_second

    sources = index_sources(config, connect)
    folder = Path(config.folder).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_second(folder)
    with ExitStack() as stack:
        index = open_index(config, folder, rebuild=rebuild)
        stack.callback(index.close)
        for name, source in sources.items():
            stack.callback(source.close)
            bring_up_to_date(index, name, source)
        return index.storages()


def index_sources(config: IndexConfig, connect: Connect) -> dict[str, HttpSource]:
    """What feeds an index: its storages by name. Raises `BadIndexConfig`, `UnknownAttribute` and `QueryError`."""
    from pilotage.provenance.index.feed import FeedRegistration, check_feed

    if not config.storages:
        raise BadIndexConfig(
            "an index needs a storage to be fed from",
            subject=config.name,
            next_step="name the service that keeps records: --storage URL",
        )
    registration = FeedRegistration(name=config.name, attributes=config.attributes, query=config.query)
    check_feed(registration)  # here rather than at each storage

    def source(storage: StorageConfig) -> HttpSource:
        return HttpSource(lambda: connect(storage), registration, limit=config.batch)

    return {each.name: source(each) for each in config.storages}


def open_index(config: IndexConfig, folder: Path, *, rebuild: bool) -> RecordIndex:
    """The index of a server, for its attributes. Raises `OtherAttributes` and `RecordIndexError`."""
    from pilotage.provenance.index.attributes import chosen_attributes

    attributes = chosen_attributes(config.attributes or None, config.indexed or None)
    if config.database:
        with extra("postgres", purpose="to keep an index in PostgreSQL"):
            from pilotage.adapters.record_index.postgres import PostgresRecordIndex
        return PostgresRecordIndex(config.database, attributes=attributes, rebuild=rebuild)
    from pilotage.adapters.record_index.sqlite import SqliteRecordIndex

    file = folder / INDEX_FILE
    if rebuild:
        # A damaged file could not even be emptied.
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                file.with_name(file.name + suffix).unlink()
    return SqliteRecordIndex(file, attributes=attributes, rebuild=rebuild)
