"""What a book shows, in the words of the oracle, and the one comparison that every property of the book is made of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pilotage.book.rows.rows import (
    AttemptFacts,
    CachedFileRow,
    EventRow,
    JobRow,
    KnowledgeRow,
    NodeRow,
    PackageFacts,
    ParkedRow,
    PilotRow,
    SiteRow,
    StageRow,
    StreamRow,
    TagRow,
)
from tests.kit import oracle
from tests.kit.memory_ledger import Book
from tests.kit.standing import WireEvent

TEXTS = ("lists", "access")
OTHERS = (PilotRow, NodeRow, SiteRow, CachedFileRow, KnowledgeRow)
BOOKKEEPING = {
    "counted_with",
    "heard_at",
    "registered_activity",
    "keys",
    "positions",
    "inferred",
    "job_id",
    "job",
    "place",
    "purged_at",
    "growth",
}


def identities(book: Book) -> dict[int, tuple[str, str, int]]:
    """Who said what stands at each position."""
    streams = {row.stream_id: (row.source, row.stream) for row in book.rows(StreamRow)}
    return {row.position: (*streams[row.stream_id], row.n) for row in book.rows(EventRow)}


def shown_attempt(facts: AttemptFacts, said_by: dict[int, tuple[str, str, int]]) -> dict[str, Any]:
    """An attempt; where its manifest and phases lie, it says who told of them instead of the position."""
    found = msgspec.structs.asdict(facts)
    del found["keys"]
    for name in ("staged", "finished"):
        position = found.pop(f"{name}_position")
        found[f"{name}_by"] = said_by[position] if position is not None else None
    return found


def shown_package(facts: PackageFacts, said_by: dict[int, tuple[str, str, int]]) -> dict[str, Any]:
    """A package and its attempts."""
    found = {name: value for name, value in msgspec.structs.asdict(facts).items() if name not in BOOKKEEPING}
    found["tags"] = {name: value for name, (value, _) in facts.tags.items()}
    found["attempts"] = {number: shown_attempt(one, said_by) for number, one in facts.attempts.items()}
    return found


def shown_job(row: JobRow) -> dict[str, Any]:
    """A job."""
    found = {name: value for name, value in msgspec.structs.asdict(row).items() if name not in BOOKKEEPING}
    found |= {name: json.loads(found[name]) for name in TEXTS}
    found["tags"] = {name: value for name, (value, _) in json.loads(row.tags).items()}
    found["forecast"] = json.loads(row.forecast) if row.forecast else None
    found["activities"] = {name: kept for name, (kept, _) in json.loads(row.activities or "{}").items()}
    found["healing"] = json.loads(row.healing) if row.healing else None
    return found


def shown_stage(row: StageRow) -> dict[str, Any]:
    """A stage."""
    found = {name: value for name, value in msgspec.structs.asdict(row).items() if name not in BOOKKEEPING | {"stage"}}
    return found | {"shape": msgspec.json.decode(row.shape)}


def assert_book_says(book: Book, events: Sequence[WireEvent]) -> None:
    """Every row of the book is what the events mean to the oracle."""
    said_by = identities(book)
    registered = sorted({event["job"] for event in events if event["type"] == "JobRegistered"})
    rows = {row.job: row for row in book.rows(JobRow)}
    assert sorted(rows) == registered
    packages = book.packages()
    stages = book.rows(StageRow)
    for name in registered:
        expected_job, expected_stages, expected_packages = oracle.job([e for e in events if e.get("job") == name])
        job_id = rows[name].job_id
        shown = {
            f"{key[1]}.{key[2]}.{key[3]}": shown_package(facts, said_by)
            for key, facts in packages.items()
            if key[0] == job_id
        }
        assert shown == {
            place: {key: value for key, value in one.items() if key != "known"}
            for place, one in expected_packages.items()
        }
        assert {row.stage: counted(shown_stage(row)) for row in stages if row.job_id == job_id} == {
            number: counted(stage) for number, stage in expected_stages.items()
        }
        assert shown_job(rows[name]) == expected_job
        tags = {("", name): value for name, value in expected_job["tags"].items()} | {
            (place, name): value for place, one in expected_packages.items() for name, value in one["tags"].items()
        }
        assert {_tagged(row): row.value for row in book.rows(TagRow) if row.job_id == job_id} == tags
    assert {row.name: (row.at, row.learned) for row in book.rows(KnowledgeRow)} == oracle.knowledge(events)
    kept = sorted(
        oracle.identity(e) or () for e in events if e.get("job", registered[:1]) in (*registered, registered[:1])
    )
    assert sorted(said_by.values()) == kept
    assert len(book.rows(ParkedRow)) == len(events) - len(kept)


def counted(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage without the exact text of its shape, which may leave out what is plain."""
    return {name: value for name, value in stage.items() if name != "shape"}


def _tagged(row: TagRow) -> tuple[str, str]:
    return (f"{row.stage}.{row.line}.{row.number}" if row.stage else "", row.name)


def everything(book: Book) -> dict[str, Any]:
    """All that a book holds, but for positions and for numbers that were given out in the order of arrival."""
    said_by = identities(book)
    jobs = {row.job_id: row.job for row in book.rows(JobRow)}
    plain: Callable[[Any], dict[str, Any]] = msgspec.structs.asdict
    return {
        "events": sorted(said_by.values()),
        "jobs": {row.job: plain(row) | {"job_id": 0} for row in book.rows(JobRow)},
        "stages": {(jobs[row.job_id], row.stage): plain(row) | {"job_id": 0} for row in book.rows(StageRow)},
        "packages": {
            (jobs[key[0]], *key[1:]): shown_package(facts, said_by)
            | {
                "keys": facts.keys,
                "tags": facts.tags,
                "inferred": facts.inferred,
                "attempt keys": {number: one.keys for number, one in facts.attempts.items()},
            }
            for key, facts in book.packages().items()
        },
        "others": [plain(row) for kind in OTHERS for row in book.rows(kind)],
        "tags": {(jobs[row.job_id], *_tagged(row)): row.value for row in book.rows(TagRow)},
        "streams": {(row.source, row.stream): (row.watermark, row.ahead) for row in book.rows(StreamRow)},
        "parked": sorted(row.event for row in book.rows(ParkedRow)),
    }


def cut(chance: random.Random, events: Sequence[WireEvent], *, size_max: int = 20) -> Iterator[list[WireEvent]]:
    """The events in their order, in batches of random sizes."""
    at = 0
    while at < len(events):
        size = chance.randint(1, size_max)
        yield list(events[at : at + size])
        at += size


def delivered(chance: random.Random, events: Sequence[WireEvent]) -> list[WireEvent]:
    """The same events in any order, some of them more than once."""
    copies = [event for event in events for _ in range(chance.choice((1, 1, 1, 1, 2, 3)))]
    chance.shuffle(copies)
    return copies
