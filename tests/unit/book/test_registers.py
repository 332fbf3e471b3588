"""Registers of attempts: the key of an event that sets several is kept once, and nobody can tell in which order they came."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows.registers import Register, holds, holds_too
from pilotage.book.rows.rows import AttemptFacts, AttemptKeys, PackageFacts, StoredKey, read_facts, written_facts

FIRSTS = (Register.CREATED, Register.STARTED, Register.FINISHED)


def key(number: int) -> StoredKey:
    """A key that is greater for a greater number."""
    return (1, number, 4, number, f"s{number}")


def take(keys: AttemptKeys, number: int, first: int, others: tuple[int, ...]) -> None:
    """One event that sets a first register, and others with it."""
    own = key(number)
    holds(keys, first, own)
    for other in others:
        holds_too(keys, other, own, first=first)


def plain(keys: AttemptKeys) -> dict[int, StoredKey | int]:
    """Keys with nothing pointing to another."""
    return {register: keys[value] if isinstance(value, int) else value for register, value in keys.items()}


def test_a_key_that_sets_two_registers_is_kept_once() -> None:
    keys: AttemptKeys = {}
    take(keys, 5, Register.FINISHED, (Register.STAGED, Register.NODE))
    assert keys == {Register.FINISHED: key(5), Register.STAGED: Register.FINISHED, Register.NODE: Register.FINISHED}


def test_a_register_stays_with_its_event_when_another_takes_the_first_over() -> None:
    keys: AttemptKeys = {}
    take(keys, 5, Register.FINISHED, (Register.NODE,))
    take(keys, 7, Register.FINISHED, ())
    assert keys == {Register.FINISHED: key(7), Register.NODE: key(5)}
    take(keys, 6, Register.STARTED, (Register.NODE,))
    assert keys[Register.NODE] == Register.STARTED


@given(
    st.lists(
        st.tuples(st.sampled_from(FIRSTS), st.sets(st.sampled_from((Register.NODE, Register.PILOT, Register.STAGED)))),
        min_size=1,
        max_size=4,
    )
)
def test_any_order_leaves_the_same_keys_and_each_is_the_greatest(events: list[tuple[int, set[int]]]) -> None:
    expected: dict[int, StoredKey] = {}
    for number, (first, others) in enumerate(events):
        for register in (first, *others):
            expected[register] = key(number)
    found = []
    for order in itertools.permutations(range(len(events))):
        facts = PackageFacts(attempts={1: AttemptFacts()})
        for number in order:
            first, others = events[number]
            take(facts.attempts[1].keys, number, first, tuple(sorted(others)))
            facts = read_facts(written_facts(facts))  # as if each came in a batch of its own
        found.append(facts.attempts[1].keys)
    assert plain(found[0]) == expected
    assert all(keys == found[0] for keys in found)
