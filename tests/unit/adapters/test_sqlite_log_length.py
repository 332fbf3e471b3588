"""The write-ahead log of a book stays short, also after a reader has kept it from being cut."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.connections import (
    CUT_MILLISECONDS,
    LOG_BYTES_MAX,
    WAIT_BYTES,
    WAIT_MILLISECONDS,
    LogCutter,
    connect_reader,
    connect_writer,
)


def test_a_log_that_a_reader_kept_from_being_cut_is_cut_once_it_has_grown_a_little(tmp_path: Path) -> None:
    book, log = tmp_path / "book.sqlite", tmp_path / "book.sqlite-wal"
    with closing(connect_writer(book, durable=False)) as writer, closing(connect_reader(book)) as reader:
        writer.execute("PRAGMA wal_autocheckpoint = 0")  # nothing but the cutter shortens it
        writer.execute("CREATE TABLE kept (content BLOB)")
        cutter = LogCutter(writer, book)

        def write(size_bytes: int) -> int:
            writer.execute("INSERT INTO kept VALUES (zeroblob(?))", (size_bytes,))
            cutter.look()
            return log.stat().st_size

        assert LOG_BYTES_MAX / 2 < write(LOG_BYTES_MAX // 2 + 1) < LOG_BYTES_MAX
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM kept").fetchone()
        assert write(LOG_BYTES_MAX) > LOG_BYTES_MAX  # it is read
        reader.execute("COMMIT")
        assert write(100_000) > LOG_BYTES_MAX  # it is not looked at after every commit
        assert write(600_000) == 0
        assert write(LOG_BYTES_MAX // 2) > 0


@pytest.mark.parametrize("size_bytes, patience", [(LOG_BYTES_MAX, CUT_MILLISECONDS), (WAIT_BYTES, WAIT_MILLISECONDS)])
def test_the_longer_the_log_is_the_longer_its_readers_are_waited_for(
    tmp_path: Path, size_bytes: int, patience: int
) -> None:
    book, executed = tmp_path / "book.sqlite", list[str]()
    with closing(connect_writer(book, durable=False)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE kept (content BLOB)")
        (before,) = writer.execute("PRAGMA busy_timeout").fetchone()
        writer.execute("INSERT INTO kept VALUES (zeroblob(?))", (size_bytes,))
        writer.set_trace_callback(executed.append)
        LogCutter(writer, book).look()
    assert [each for each in executed if "busy_timeout =" in each] == [
        f"PRAGMA busy_timeout = {patience}", f"PRAGMA busy_timeout = {before}",
    ]  # fmt: skip
