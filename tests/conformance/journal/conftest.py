"""The two adapters as fixtures: each test of the suite runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pilotage.adapters.journals.postgres.journal import PostgresJournal
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.ports import Journal
from tests.conformance.journal.harness import Harness, PostgresHarness, SqliteHarness
from tests.engines.postgres import PostgresServer


@pytest.fixture(scope="session")
def empty_book(postgres_server: PostgresServer) -> str:
    """The name of a database with an empty book; a copy of it is made much quicker than another one."""
    url = postgres_server.database()
    PostgresJournal(url).close()
    return urlsplit(url).path.removeprefix("/")


@pytest.fixture
def store(postgres_server: PostgresServer, empty_book: str) -> Iterator[PostgresHarness]:
    """An empty book in PostgreSQL."""
    with _postgres(postgres_server, empty_book) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """An empty book of each kind."""
    if request.param == "sqlite":
        with SqliteHarness(tmp_path / "book") as made:
            yield made
    else:
        yield request.getfixturevalue("store")


@pytest.fixture
def journal(harness: Harness) -> Journal:
    """The book, open."""
    return harness.open()


@pytest.fixture
def both(tmp_path: Path, postgres_server: PostgresServer, empty_book: str) -> Iterator[tuple[Harness, Harness]]:
    """Another book of either kind, for what must come out the same."""
    with SqliteHarness(tmp_path / "other") as first, _postgres(postgres_server, empty_book) as second:
        yield first, second


@contextmanager
def _postgres(server: PostgresServer, template: str) -> Iterator[PostgresHarness]:
    server.ensure_running()
    url = server.database(template=template)
    with PostgresHarness(url) as made:
        yield made
    server.ensure_running()
    server.drop(url)


@pytest.fixture
def scratches(tmp_path: Path) -> Iterator[Iterator[Journal]]:
    """Empty journals to fold into."""
    made: list[Journal] = []

    def journals() -> Iterator[Journal]:
        while True:
            made.append(SqliteJournal(tmp_path / f"scratch-{len(made)}", durable=False))
            yield made[-1]

    yield journals()
    for journal in made:
        journal.close()
