"""How tests are dealt out to workers."""

from __future__ import annotations

from tests.kit.dealing import dealt

SLOW = [f"tests/acceptance/test_{name}.py::test_{n}" for name in "abcd" for n in (1, 2)]
HEAVY = [f"tests/simulation/test_{name}.py::test_1" for name in "abcd"]
QUICK = [f"tests/unit/test_many.py::test_{n}" for n in range(28)]


def stretches(nodes: list[str], workers: int) -> list[list[str]]:
    """What each worker gets first."""
    order = dealt(nodes, workers=workers)
    size = len(nodes) // workers
    return [[nodes[place] for place in order[at * size : (at + 1) * size]] for at in range(workers)]


def test_every_test_is_handed_out_once() -> None:
    nodes = [*SLOW, *HEAVY, *QUICK, "tests/test_other.py::test_1"]
    for workers in (1, 2, 3, 7):
        assert sorted(dealt(nodes, workers=workers)) == list(range(len(nodes)))


def test_each_worker_begins_with_what_takes_long_and_ends_with_what_is_quick() -> None:
    for stretch in stretches([*SLOW, *HEAVY, *QUICK], workers=2):
        assert len(set(stretch[:6]) & {*SLOW, *HEAVY}) == 6
        assert set(stretch[6:]) <= set(QUICK)


def test_what_waits_and_what_computes_take_turns_and_a_file_stays_together() -> None:
    for stretch in stretches([*SLOW, *HEAVY, *QUICK], workers=2):
        kinds = [node.split("/")[1] for node in stretch[:6]]
        assert kinds == ["acceptance", "acceptance", "simulation"] * 2


def test_where_nothing_is_quick_all_is_handed_out_all_the_same() -> None:
    assert sorted(dealt(SLOW, workers=3)) == list(range(len(SLOW)))
    assert dealt([], workers=3) == []
