"""The order of small graphs: depths, and the loop that stands in its way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotage.model.jobs.graph import depths, find_loop, followers

EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14)


def test_a_node_lies_as_deep_as_the_longest_way_to_it() -> None:
    assert depths(followers(5, [(0, 1), (1, 2), (0, 2), (3, 2)])) == [0, 1, 2, 0, 0]


def test_an_edge_given_twice_counts_once() -> None:
    assert depths(followers(2, [(0, 1), (0, 1)])) == [0, 1]


def test_nothing_has_no_depth_and_no_loop() -> None:
    assert (depths([]), find_loop([])) == ([], [])


def test_a_node_that_follows_itself_is_a_loop() -> None:
    assert find_loop(followers(2, [(0, 1), (1, 1)])) == [1]


def test_what_stands_behind_a_loop_is_no_part_of_it() -> None:
    assert sorted(find_loop(followers(4, [(1, 2), (2, 1), (2, 3), (0, 1)]))) == [1, 2]


@given(EDGES)
def test_either_there_is_a_loop_of_edges_or_every_edge_leads_deeper(edges: list[tuple[int, int]]) -> None:
    graph = followers(7, edges)
    loop = find_loop(graph)
    deep = depths(graph)
    if loop:
        assert {*zip(loop, [*loop[1:], loop[0]], strict=True)} <= {*edges}
    else:
        assert all(deep[before] < deep[after] for before, after in edges)
