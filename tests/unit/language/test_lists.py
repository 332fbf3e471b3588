from __future__ import annotations

import pytest

from pilotage.language.expansion.lists import LateList, ListFault, RecordedLists, RecordingLists, late_key, makers_key
from pilotage.language.folder import CachedFile, EarlierOutputs, MemoryFolder
from pilotage.model.jobs.submission import ResolvedLists
from tests.kit.jobs import OneJob


class Counting(MemoryFolder):
    """A folder that counts how often it is asked."""

    asked = 0

    def read(self, path: str) -> bytes | None:
        self.asked += 1
        return super().read(path)

    def glob(self, pattern: str) -> list[str]:
        self.asked += 1
        return super().glob(pattern)


def recording() -> tuple[RecordingLists, Counting]:
    folder = Counting({"t.csv": "a,b\n1,2\n", "l.txt": "x\ny\n", "f.dat": ""})
    return RecordingLists(folder, OneJob("old", ["o.dat"])), folder


def ask(lists: RecordingLists | RecordedLists) -> object:
    return lists.files("*.dat"), lists.lines("l.txt"), lists.columns("t.csv"), lists.outputs("old", "*")


def test_everything_is_read_once() -> None:
    lists, folder = recording()
    first = ask(lists)
    asked = folder.asked
    assert ask(lists) == first == (("f.dat",), ("x", "y"), {"a": ("1",), "b": ("2",)}, ("o.dat",))
    assert folder.asked == asked == 3


def test_what_was_recorded_is_given_back() -> None:
    lists, _ = recording()
    first = ask(lists)
    assert ask(RecordedLists(lists.resolved)) == first


def test_a_list_without_a_match_is_recorded_too() -> None:
    lists, _ = recording()
    assert lists.files("*.none") == ()
    assert RecordedLists(lists.resolved).files("*.none") == ()


def test_a_record_without_the_list_is_a_fault() -> None:
    with pytest.raises(ListFault) as caught:
        RecordedLists(ResolvedLists()).files("*.dat")
    assert caught.value.code == "missing-list"


def test_a_colon_in_a_name_does_not_mix_up_two_lists() -> None:
    folder = MemoryFolder({"t": "a:b,c\n1,2\n", "t:a": "b,c\n3,4\n", "t:c": "x\n9\n"})
    lists = RecordingLists(folder)
    assert lists.columns("t") == {"a:b": ("1",), "c": ("2",)}
    assert lists.columns("t:a") == {"b": ("3",), "c": ("4",)}
    assert lists.columns("t:c") == {"x": ("9",)}
    assert RecordedLists(lists.resolved).columns("t:c") == {"x": ("9",)}


def test_jobs_and_patterns_with_colons_are_kept_apart() -> None:
    asked: list[tuple[str, str]] = []

    class Echo:
        def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
            asked.append((job, pattern))
            return EarlierOutputs("id", [f"{job}|{pattern}"])

        def cached_files(self, site: str) -> list[CachedFile] | None:
            return None

    lists = RecordingLists(MemoryFolder(), Echo())
    assert lists.outputs("a:b", "c") == ("a:b|c",)
    assert lists.outputs("a", "b:c") == ("a|b:c",)


def test_late_lists_are_known_once_they_are_recorded() -> None:
    key = late_key(2, "p-*", None)
    lists = {key: ("p-1",), makers_key(key): ("7",)}
    assert RecordedLists(ResolvedLists()).late(2, "p-*", None) is None
    assert RecordedLists(ResolvedLists(lists=lists)).late(2, "p-*", None) == LateList(("p-1",), (7,))
    assert RecordedLists(ResolvedLists(lists=lists)).late(2, "p-*", 1) is None


def test_only_what_is_absent_is_absent() -> None:
    lists, _ = recording()
    assert lists.absent(["f.dat", "g.dat"]) == ["g.dat"]
    assert RecordedLists(ResolvedLists()).absent(["g.dat"]) == []
