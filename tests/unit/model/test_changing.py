"""Structs that change often: nothing is different about them but how fast their fields are set."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.texts import changes_often


@changes_often
class Counter(msgspec.Struct, gc=False):
    """One that counts."""

    name: str
    count: int = 0


def test_a_field_is_set() -> None:
    counter = Counter("a")
    counter.count += 2
    assert counter == Counter("a", 2)


def test_a_field_can_be_taken_away() -> None:
    counter = Counter("a")
    del counter.count
    with pytest.raises(AttributeError):
        _ = counter.count


def test_what_is_no_field_cannot_be_set() -> None:
    counter = Counter("a")
    name = "total"
    with pytest.raises(AttributeError):
        setattr(counter, name, 1)


def test_python_sets_fields_without_a_detour() -> None:
    assert Counter.__setattr__ is object.__setattr__
    assert Counter.__delattr__ is object.__delattr__


def test_it_is_written_and_read_as_any_other() -> None:
    counter = Counter("a", 3)
    assert msgspec.json.decode(msgspec.json.encode(counter), type=Counter) == counter
