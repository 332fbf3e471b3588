"""A record has all that a dump has: the dump can be made again from it, and loaded."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.adapters.records.folder import FolderRecords
from pilotage.book.rows.rows import NodeRow
from pilotage.model.events.payloads import AttemptStarted, NodeDescribed, Tagged
from pilotage.model.jobs.submission import Captured, Origin
from pilotage.ports import DumpParts
from pilotage.provenance import assembly
from pilotage.provenance.assembly import Extra, NotADump, assemble, dump_of
from tests.kit.events import Stream, a_short_job, cut, delivered, random_history
from tests.kit.sqlite_books import keep, opened


def add_to(store: FolderRecords) -> Callable[[str, bytes], str]:
    return lambda kind, content: store.add_parts([(kind, content)])[0]


def digest_of(kind: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def nobody(names: Iterable[str]) -> list[NodeRow]:
    return []


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_the_dump_of_a_record_is_the_one_it_was_made_from(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("books")
    store = FolderRecords(folder / "records")
    with opened(folder / "book") as book, opened(folder / "other") as other:
        for batch in cut(delivered(random_history(chance), chance), chance):
            keep(book, batch)
        for job in ("job-1", "job-2"):
            row = book.job(job)
            assert row is not None
            lines = list(book.dump(job))
            made = assemble(row, lines, add_part=add_to(store), nodes=nobody, made_at=5.0, revision=1)
            with book.dump_parts(row) as parts:
                assert assemble(row, parts, add_part=digest_of, nodes=nobody, made_at=5.0, revision=1) == made
            store.commit([made])
            found = store.record(job)
            assert found == made
            assert (found.owner, found.state) == (row.owner, row.state)
            again = list(dump_of(found, store.content))
            assert b"".join(again) == b"".join(lines)
            assert other.load(again) == job
    store.close()


def test_a_later_revision_of_a_long_job_shares_what_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "LIFE_LOG_BYTES", 2000)
    store, by = FolderRecords(tmp_path / "records"), Stream("service", "core")
    with opened(tmp_path / "book") as book:
        keep(book, a_short_job(packages=20, stream=by))
        made = []
        for revision in (1, 2):
            row = book.job("j1")
            assert row is not None
            lines = list(book.dump("j1"))
            made.append(assemble(row, lines, add_part=add_to(store), nodes=nobody, made_at=5.0, revision=revision))
            with book.dump_parts(row) as parts:
                assert (
                    assemble(row, parts, add_part=digest_of, nodes=nobody, made_at=5.0, revision=revision) == made[-1]
                )
            store.commit(made[-1:])
            assert list(dump_of(made[-1], store.content)) == lines
            keep(book, [by.event(Tagged(name="group", value="A"), job="j1")])
    first, second = ([part.sha256 for part in each.parts if part.kind == "life-log"] for each in made)
    assert len(first) > 5
    assert second[: len(first) - 1] == first[:-1]
    store.close()


def test_a_record_says_what_each_content_is_where_it_ran_and_how_it_is_tagged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("books")
    by = Stream("service", "core")
    with opened(folder / "book") as book:
        program = book.put_content(b"#!/bin/sh\n")
        large = Captured(sha256="0" * 64, size_bytes=10**9, content=False)
        captured = {"bin/run.sh": Captured(sha256=program, executable=True), "large.dat": large}
        brought = book.put_content(msgspec.json.encode(captured))
        origin = book.put_content(msgspec.json.encode(Origin(folder="/data")))
        definition = book.put_content(b'{"job":"j1"}')
        events = a_short_job(stream=by)
        first = msgspec.json.decode(events[0].data)
        first |= {"definition": definition, "lists": {"captured": brought, "origin": origin, "file-1": program}}
        keep(book, [msgspec.structs.replace(events[0], data=msgspec.Raw(msgspec.json.encode(first))), *events[1:]])
        keep(book, [by.event(Tagged(name="group", value=value), job="j1") for value in ("A", "B")])
        keep(book, [by.event(AttemptStarted(node="n17"), job="j1", package="1.1.1", attempt=1)])
        told = NodeDescribed(node="n17", software={"tool": "2.0"})
        keep(book, [by.event(told, job="j1", package="1.1.1", attempt=1)])
        row = book.job("j1")
        assert row is not None
        asked: list[str] = []

        def described(names: Iterable[str]) -> list[NodeRow]:
            asked.extend(names)
            return [NodeRow(node=each, cpu_model="Xeon", software='{"root":"6.30"}') for each in asked]

        log = Extra("log", "1.1.1-1.stdout", b"done\n")
        made = assemble(
            row,
            book.dump("j1"),
            add_part=digest_of,
            nodes=described,
            sites=lambda site: f"{{{site}}}".encode(),
            extras=[log],
            made_at=5.0,
            revision=1,
        )
    parts = {(each.kind, each.name): each.sha256 for each in made.parts}
    assert parts["definition", "definition"] == definition
    assert parts["file", "bin/run.sh"] == program
    assert parts["list", "origin"] == origin
    assert ("log", "1.1.1-1.stdout") in parts
    assert made.tags == {"group": "B"}
    assert [each.node for each in made.nodes] == asked == ["n17"]
    assert (made.nodes[0].software, made.nodes[0].cpu_model) == ({"root": "6.30", "tool": "2.0"}, "Xeon")
    assert [("environment", f"sites/{site}.json") in parts for site in made.sites] == [True] * len(made.sites)
    assert made.sites


def test_a_record_of_a_sealed_job_is_that_of_the_live_one(tmp_path: Path) -> None:
    made = []
    with opened(tmp_path / "book") as book:
        keep(book, a_short_job(packages=3, stream=Stream("service", "core")))
        for _ in range(2):
            row = book.job("j1")
            assert row is not None
            with book.dump_parts(row) as parts:
                made.append(assemble(row, parts, add_part=digest_of, nodes=nobody, made_at=5.0, revision=1))
            book.seal("j1")
    assert made[0] == made[1]


def test_a_content_of_the_book_that_does_not_match_its_digest_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "book") as book:
        keep(book, a_short_job(stream=Stream("service", "core")))
        row = book.job("j1")
        assert row is not None
        with book.dump_parts(row) as parts:
            wrong = parts._replace(contents=iter([("0" * 64, b"another content")]))
            with pytest.raises(NotADump, match="does not match its digest"):
                assemble(row, wrong, add_part=digest_of, nodes=nobody, made_at=5.0, revision=1)


@pytest.mark.parametrize("name", ["n17", 'n"17', "n\\17", "n\\\\", "nœud", "", 'n"', "a\\n"])
def test_nodes_of_any_name_are_found(tmp_path: Path, name: str) -> None:
    asked: list[str] = []
    by = Stream("service", "core")

    def described(names: Iterable[str]) -> list[NodeRow]:
        asked.extend(names)
        return []

    header, line = (
        b'{"format":"pilotage-job"}\n',
        msgspec.json.encode({"event": {"data": {"node": name, "x": 1}}}) + b"\n",
    )
    with opened(tmp_path / "book") as book:
        keep(book, a_short_job(stream=by))
        row = book.job("j1")
    assert row is not None
    parts = DumpParts(header, iter(()), iter([line + line, line]))
    assemble(row, parts, add_part=digest_of, nodes=described, made_at=5.0, revision=1)
    assert asked == [name]


def test_what_is_no_dump_of_the_job_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with opened(tmp_path_factory.mktemp("books") / "book") as book:
        content = book.put_content(b"a definition")
        events = a_short_job(stream=Stream("service", "core"))
        first = msgspec.json.decode(events[0].data) | {"definition": content}
        keep(book, [msgspec.structs.replace(events[0], data=msgspec.Raw(msgspec.json.encode(first))), *events[1:]])
        row, lines = book.job("j1"), list(book.dump("j1"))
    assert row is not None
    assert len([line for line in lines if line.startswith(b'{"content"')]) == 1
    for wrong in (
        [],
        lines[:-1],
        lines[:2] + lines[3:],
        [lines[0].replace(b'"j1"', b'"j2"'), *lines[1:]],
        [each.replace(b"YSBk", b"YSBl") for each in lines],
        [*lines[:2], b"nonsense\n", *lines[2:]],
    ):
        with pytest.raises(NotADump):
            assemble(row, wrong, add_part=digest_of, nodes=nobody, made_at=5.0, revision=1)
