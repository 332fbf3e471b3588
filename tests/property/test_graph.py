"""The graph against oracles that know sets of pairs only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.model.jobs.graph import EdgeKind, Graph, Segment

Edge = tuple[int, int, int]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """A number of packages and edges in any order, some of them twice."""
    count = draw(st.integers(1, 12))
    numbers = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers, st.sampled_from([1, 2, 4, 8, 16, 17])), max_size=30))
    return count, [edge for edge in pairs if edge[0] != edge[1]]


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """The same, every edge along one order, which is not that of the numbers."""
    count, pairs = draw(graphs())
    place = draw(st.permutations(range(count)))
    return count, [(s, t, k) if place[s] < place[t] else (t, s, k) for s, t, k in pairs]


def segment(first: int, count: int, pairs: list[Edge]) -> Segment:
    columns = np.array(pairs, dtype=np.int32).reshape(-1, 3)
    return Segment(first, count, sources=columns[:, 0], targets=columns[:, 1], kinds=columns[:, 2].astype(np.uint8))


def graph(count: int, pairs: list[Edge]) -> Graph:
    return Graph().grown(segment(0, count, pairs))


def merged(pairs: list[Edge]) -> dict[tuple[int, int], int]:
    kinds: dict[tuple[int, int], int] = {}
    for source, target, kind in pairs:
        kinds[source, target] = kinds.get((source, target), 0) | kind
    return kinds


def reachable(pairs: list[Edge], start: int) -> set[int]:
    found: set[int] = set()
    while True:
        more = {t for s, t, _ in pairs if s == start or s in found} - found
        if not more:
            return found
        found |= more


@given(graphs())
def test_edges_between_the_same_two_become_one_with_all_kinds(given_graph: tuple[int, list[Edge]]) -> None:
    count, pairs = given_graph
    found = graph(count, pairs)
    assert {(s, t): int(k) for s, t, k in found.edges()} == merged(pairs)
    assert found.edge_count == len(merged(pairs))


@given(graphs())
def test_neighbours_are_those_of_the_edges(given_graph: tuple[int, list[Edge]]) -> None:
    count, pairs = given_graph
    found = graph(count, pairs)
    for package in range(count):
        assert found.predecessors(package).tolist() == sorted({s for s, t, _ in pairs if t == package})
        assert found.successors(package).tolist() == sorted({t for s, t, _ in pairs if s == package})
    awaited = {(s, t) for (s, t), kinds in merged(pairs).items() if kinds & EdgeKind.AWAITED}
    assert found.waits().tolist() == [len({s for s, t in awaited if t == package}) for package in range(count)]


@given(graphs())
def test_there_is_an_order_unless_there_is_a_cycle(given_graph: tuple[int, list[Edge]]) -> None:
    count, pairs = given_graph
    found = graph(count, pairs)
    order, cycle = found.order(), found.cycle()
    cyclic = any(package in reachable(pairs, package) for package in range(count))
    assert (order is None) == cyclic == bool(cycle)
    if order is not None:
        assert sorted(order.tolist()) == list(range(count))
        place = {package: i for i, package in enumerate(order.tolist())}
        assert all(place[s] < place[t] for s, t, _ in pairs)


@given(graphs())
def test_a_cycle_is_a_loop_of_edges_that_starts_with_its_smallest(given_graph: tuple[int, list[Edge]]) -> None:
    count, pairs = given_graph
    loop = graph(count, pairs).cycle()
    known = {(s, t) for s, t, _ in pairs}
    assert all((s, t) in known for s, t in zip(loop, [*loop[1:], *loop[:1]], strict=True))
    assert len(set(loop)) == len(loop)
    assert not loop or loop[0] == min(loop)


def longest(pairs: list[Edge], weights: list[float], package: int) -> float:
    before = [longest(pairs, weights, s) for s in {s for s, t, _ in pairs if t == package}]
    return weights[package] + max(before, default=0.0)


@given(acyclic(), st.data())
def test_depths_and_the_critical_path_are_those_of_the_longest_ways(
    graph_given: tuple[int, list[Edge]], data: st.DataObject
) -> None:
    count, pairs = graph_given
    weights = data.draw(st.lists(st.integers(0, 100).map(float), min_size=count, max_size=count))
    found = graph(count, pairs)
    assert found.depths().tolist() == [longest(pairs, [1.0] * count, p) - 1 for p in range(count)]
    assert found.critical_path_seconds(np.array(weights)) == max(longest(pairs, weights, p) for p in range(count))


@given(acyclic(), st.data())
def test_a_graph_grown_by_segments_is_the_graph_made_at_once(
    graph_given: tuple[int, list[Edge]], data: st.DataObject
) -> None:
    count, pairs = graph_given
    cut = data.draw(st.integers(0, count))
    old = [edge for edge in pairs if max(edge[:2]) < cut]
    new = [edge for edge in pairs if max(edge[:2]) >= cut]
    grown = Graph().grown(segment(0, cut, old)).grown(segment(cut, count - cut, new))
    whole = graph(count, pairs)
    assert sorted(grown.edges()) == sorted(whole.edges())
    assert grown.count == whole.count
    for package in range(count):
        assert grown.predecessors(package).tolist() == whole.predecessors(package).tolist()
        assert grown.successors(package).tolist() == whole.successors(package).tolist()
    assert grown.depths().tolist() == whole.depths().tolist()
    assert grown.cycle() == []


@given(graphs())
def test_growing_leaves_the_earlier_graph_as_it_was(given_graph: tuple[int, list[Edge]]) -> None:
    count, pairs = given_graph
    before = graph(count, pairs)
    seen = list(before.edges())
    before.grown(segment(count, 1, [(0, count, int(EdgeKind.FILE))]))
    assert (before.count, list(before.edges())) == (count, seen)


def test_a_segment_that_leaves_a_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0"):
        Graph().grown(segment(1, 1, []))
