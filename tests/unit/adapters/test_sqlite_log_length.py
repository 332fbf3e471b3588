"""The write-ahead log of a book stays short, also after a reader has kept it from being cut."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pilotage.adapters.journals.sqlite.connections import LOG_BYTES_MAX, LogCutter, connect_reader, connect_writer


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
