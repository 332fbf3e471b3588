"""Whatever comes over the wire is an event or a refusal that says why; nothing else."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilotage.book.codec import CUT_BYTES_MAX, Checked, Codec, MalformedBatch, Refusal, event_texts
from pilotage.model.events.events import EVENT_TYPES
from tests.kit.histories import Scheduler
from tests.kit.memory_ledger import MemoryBook, SqliteBook

CODEC = Codec()
HISTORY = [event for seed in range(6) for event in Scheduler(random.Random(seed)).run(50).events]
events = st.sampled_from(HISTORY)
junk = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(sorted(EVENT_TYPES))
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def verdict(text: bytes) -> Checked | Refusal:
    found = CODEC.read(text, 0)
    assert isinstance(found, Checked | Refusal)
    if isinstance(found, Refusal):
        assert found.message
        assert len(found.message) < 1000
    return found


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff")
@example(b"[" * 100_000)
@example(b'{"data":' + b"[" * 100_000)
@example(b'{"data":' * 100_000)
def test_any_bytes_are_refused_or_read(text: bytes) -> None:
    verdict(text)


@given(events, st.data())
@settings(max_examples=3 * settings().max_examples)
def test_an_event_with_anything_in_place_of_a_part_is_refused_or_read(
    event: dict[str, Any], data: st.DataObject
) -> None:
    changed = dict(event)
    where = data.draw(st.sampled_from([*changed, "version", "pilot", "site", "new"]))
    changed[where] = data.draw(junk)
    verdict(json.dumps(changed).encode())  # with NaN and lone surrogates, as Python writes them
    inside = {**event["data"], data.draw(st.sampled_from([*event["data"], "new"])): data.draw(junk)}
    verdict(json.dumps({**event, "data": inside}).encode())


@given(events, st.integers(0, 2000), st.integers(0, 255))
@settings(max_examples=3 * settings().max_examples)
def test_an_event_with_a_byte_changed_is_refused_or_read_and_what_is_read_can_be_kept(
    event: dict[str, Any], at: int, byte: int
) -> None:
    text = bytearray(json.dumps(event, ensure_ascii=False).encode())
    text[at % len(text)] = byte
    found = verdict(bytes(text))
    if isinstance(found, Checked):
        registration = {**HISTORY[0], "job": found.event.job or "job", "stream": "other"}
        first = CODEC.read(msgspec.json.encode(registration), 0)
        assert isinstance(first, Checked)
        for book in (MemoryBook(), SqliteBook()):
            assert book.keep([first, found]).receipt.kept == 2
            book.close()


@given(st.lists(st.one_of(events, junk, st.just("\ud800"), st.just("\udcff")), max_size=6))
def test_a_bad_event_does_not_take_the_good_ones_with_it(parts: list[Any]) -> None:
    body = json.dumps({"events": parts}).encode()  # with NaN and halves of surrogate pairs, as Python writes them
    checked, refused, count = CODEC.read_batch(body)
    assert count == len(parts)
    assert sorted([one.index for one in checked] + [one.index for one in refused]) == list(range(count))
    assert {one.index for one in checked} >= {at for at, part in enumerate(parts) if any(part is e for e in HISTORY)}


PARTS = [
    "source",
    "stream",
    "n",
    "type",
    "time",
    "job",
    "package",
    "attempt",
    "pilot",
    "site",
    "epoch",
    "seen",
    "version",
]
likely = st.one_of(
    st.none(),
    st.integers(-1, 3),
    st.sampled_from([2**53, 2**64, 0.5, "1.1.1", "0.1.1", "j", "a:b", "-", "", "Tagged", "agent"]),
)


@given(st.lists(st.tuples(events, st.sampled_from(PARTS), likely), min_size=1, max_size=8))
@settings(max_examples=2 * settings().max_examples)
def test_a_batch_is_judged_as_its_events_are_one_by_one(changes: list[tuple[dict[str, Any], str, Any]]) -> None:
    parts = [event | ({part: value} if at % 2 else {}) for at, (event, part, value) in enumerate(changes)]
    codec = Codec()
    for _ in range(2):  # the second time it has seen them all
        checked, refused, count = codec.read_batch(json.dumps({"events": parts}).encode())
        found: dict[int, Checked | Refusal] = {one.index: one for one in checked}
        found |= {one.index: one for one in refused}
        assert len(found) == count == len(parts)
        for at, part in enumerate(parts):
            alone = Codec().read(json.dumps(part).encode(), at)
            assert found[at] == alone or _same(found[at], alone)


@given(st.permutations(HISTORY[:12]), st.data())
def test_a_verdict_does_not_depend_on_what_was_read_before(before: list[dict[str, Any]], data: st.DataObject) -> None:
    names = ["a:b@c", "site/one", "-x", "x" * 65, "plain", "x" * 128]
    parts = [
        {**event, **({"job": data.draw(st.sampled_from(names))} if "job" in event else {"stream": "a:b@c"})}
        for event in before
    ] + [{**before[0], "stream": name} for name in names]
    seasoned = Codec()
    for part in data.draw(st.permutations(parts)):
        text = msgspec.json.encode(part)
        assert seasoned.read(text, 0) == Codec().read(text, 0) or _same(seasoned.read(text, 0), Codec().read(text, 0))


def _same(one: Checked | Refusal, other: Checked | Refusal) -> bool:
    """Equal but for the text of the payload, which knows no equality."""
    if not isinstance(one, Checked) or not isinstance(other, Checked):
        return False
    fields = [name for name in one.event.__struct_fields__ if name != "data"]
    same = all(getattr(one.event, name) == getattr(other.event, name) for name in fields)
    return same and (one.kind, one.place, one.data) == (other.kind, other.place, other.data)


@given(st.binary(max_size=100))
@example(b'{"events":' + b"[" * 100_000)
@example(b'{"events":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}")
@example(b'{"events":null}')
@example(b'{"events":[],"more":1}')
def test_a_body_that_is_no_batch_is_told_so(body: bytes) -> None:
    with contextlib.suppress(MalformedBatch):
        assert CODEC.read_batch(body)[2] >= 0


@given(events)
def test_what_was_read_is_read_again_the_same(event: dict[str, Any]) -> None:
    first = verdict(json.dumps(event).encode())
    assert isinstance(first, Checked)
    again = verdict(msgspec.json.encode(first.event))
    assert isinstance(again, Checked)
    assert (again.kind, again.place, again.data) == (first.kind, first.place, first.data)


DEEP = b"[" * 5_000 + b"]" * 5_000  # more than a reader of Python's follows


@given(st.lists(junk, max_size=5), st.sampled_from([b",", b" ,\n "]))
def test_a_batch_is_cut_where_a_reader_would_cut_it(each: list[Any], between: bytes) -> None:
    texts = [json.dumps(one).encode() for one in each]
    body = b'{ "events" : [ %b ] }' % between.join(texts)
    assert event_texts(body) == texts


@given(st.binary(max_size=60))
@example(b'{"events":[')
@example(b'{"events":[{]}')
@example(b'{"events":["]}')
@example(b'{"events":[}')
@example(b'{"events":[{"data":[1}},{"n":1}]}')
@example(b'{"events":[[1},{"n":1}]}')
@example(b'\x0b{"events":[1]}')
@example(b'{"events":[]}]')
@example(b'{"events":[1],"events":[2]}')
@example(b'{"events":[%b]}' % (b"1" * CUT_BYTES_MAX))
def test_what_is_no_batch_is_not_cut(text: bytes) -> None:
    assert event_texts(text) is None
    assert event_texts(b'{"events":[%b' % text.replace(b"]", b"")) is None


@given(st.lists(events, max_size=4), st.integers(0, 4))
def test_an_event_that_is_nested_too_deeply_does_not_take_the_others_with_it(others: list[Any], at: int) -> None:
    texts = [msgspec.json.encode(each) for each in others]
    texts.insert(at, b'{"source":"application","stream":"s","n":1,"type":"Tagged","time":1,"data":%b}' % DEEP)
    at = min(at, len(others))
    body = b'{"events":[%b]}' % b",".join(texts)
    checked, refused, count = CODEC.read_batch(body)
    assert CODEC.read_batch(body, count_max=len(texts) - 1) == ([], [], len(texts))
    assert count == len(texts)
    assert [one.index for one in refused] == [at]
    assert refused[0].code == "malformed"
    assert [one.event for one in checked] == [
        one.event for one in CODEC.read_batch(msgspec.json.encode({"events": others}))[0]
    ]


@pytest.mark.parametrize("length, cut", [(1_100_000, True), (1_100_001, False)])
def test_a_batch_of_more_than_1_1_megabytes_with_an_event_that_is_nested_too_deeply_is_refused_whole(
    length: int, *, cut: bool
) -> None:
    body = b'{"events":[{"data":%b}' % DEEP
    body += b" " * (length - len(body) - 2) + b"]}"
    if cut:
        assert [one.code for one in CODEC.read_batch(body)[1]] == ["malformed"]
    else:
        with pytest.raises(MalformedBatch):
            CODEC.read_batch(body)
