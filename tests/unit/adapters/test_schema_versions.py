"""A table that changes gets a new schema version and a migration: a book that was ever made can be opened for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pilotage.adapters.journals.postgres import schema
from pilotage.adapters.journals.sqlite import schema as sqlite_schema

SNAPSHOT = Path(__file__).parent / "schemas.json"


def schemas() -> dict[str, dict[str, str]]:
    """What today's versions make, as a digest for each journal."""
    made = {
        "sqlite": (sqlite_schema.SCHEMA_VERSION, sqlite_schema.statements()),
        "postgres": (
            schema.SCHEMA_VERSION,
            [statement for migration in schema.MIGRATIONS for statement in migration.statements],
        ),
    }
    return {
        name: {str(version): hashlib.sha256("\n".join(statements).encode()).hexdigest()}
        for name, (version, statements) in made.items()
    }


def test_a_schema_is_what_its_version_always_was() -> None:
    recorded = json.loads(SNAPSHOT.read_text("utf-8"))
    for name, versions in schemas().items():
        for version, digest in versions.items():
            assert recorded[name].get(version) == digest, f"the tables of {name} changed: raise its version and migrate"


if __name__ == "__main__":
    known = json.loads(SNAPSHOT.read_text("utf-8")) if SNAPSHOT.exists() else {}
    for name, versions in schemas().items():
        known[name] = {**versions, **known.get(name, {})}  # one that is there never changes
    SNAPSHOT.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", "utf-8")
