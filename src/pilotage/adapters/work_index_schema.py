"""The tables of the index of earlier work, and how those of an earlier version become these."""

from __future__ import annotations

VERSION = 3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (name_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS made (
    made_id INTEGER PRIMARY KEY,  -- a later one has the greater number
    folder INTEGER NOT NULL, key BLOB NOT NULL, document INTEGER NOT NULL,
    stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, fields BLOB NOT NULL, manifest BLOB NOT NULL,
    UNIQUE (folder, key));
CREATE INDEX IF NOT EXISTS made_places ON made (folder, document, stage, line, number);
CREATE TABLE IF NOT EXISTS files (
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL, inode INTEGER NOT NULL, changed_ns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (folder, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folders (folder INTEGER PRIMARY KEY, used_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ours (  -- every content that was made under a name: the one before may still be there
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    job INTEGER,  -- the last that made it
    PRIMARY KEY (folder, name, sha256)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS times (
    folder INTEGER NOT NULL, document INTEGER NOT NULL, activity TEXT NOT NULL,
    count INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (folder, document, activity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    job INTEGER NOT NULL, stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    attempt INTEGER NOT NULL, stream TEXT NOT NULL,
    head BLOB NOT NULL, tail BLOB NOT NULL, dropped_bytes INTEGER NOT NULL, final INTEGER NOT NULL,
    PRIMARY KEY (job, stage, line, number, attempt, stream)) WITHOUT ROWID;
"""

_MORE = {
    1: "ALTER TABLE ours ADD COLUMN job INTEGER;",
    2: "ALTER TABLE files ADD COLUMN changed_ns INTEGER NOT NULL DEFAULT 0;",
}


def to_version(version: int) -> str:
    """The statements that make the tables of this version of those of another, or of none (0)."""
    more = " ".join(_MORE[each] for each in range(version, VERSION)) if version else ""
    return f"{_SCHEMA} {more} PRAGMA user_version = {VERSION};"
