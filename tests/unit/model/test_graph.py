from __future__ import annotations

import numpy as np
import pytest

from pilotage.model.jobs.graph import EdgeKind, Graph, Rows, Segment


def segment(first: int, count: int, *pairs: tuple[int, int, EdgeKind]) -> Segment:
    sources, targets, kinds = (list(column) for column in zip(*pairs, strict=True)) if pairs else ([], [], [])
    return Segment(
        first,
        count,
        sources=np.array(sources, np.int32),
        targets=np.array(targets, np.int32),
        kinds=np.array(kinds, np.uint8),
    )


def test_a_graph_of_nothing_is_in_order() -> None:
    graph = Graph()
    assert (graph.count, graph.edge_count, list(graph.edges()), graph.cycle()) == (0, 0, [], [])
    assert graph.critical_path_seconds(np.zeros(0)) == 0.0
    order = graph.order()
    assert order is not None
    assert order.tolist() == []


def test_packages_without_edges_are_in_order() -> None:
    order = Graph().grown(segment(0, 3)).order()
    assert order is not None
    assert order.tolist() == [0, 1, 2]


def test_two_reasons_between_the_same_two_are_one_edge() -> None:
    graph = Graph().grown(segment(0, 2, (0, 1, EdgeKind.SEQUENCE), (0, 1, EdgeKind.FILE)))
    assert list(graph.edges()) == [(0, 1, EdgeKind.FILE | EdgeKind.SEQUENCE)]


def test_an_edge_back_to_an_older_package_comes_with_a_later_segment() -> None:
    graph = Graph().grown(segment(0, 2)).grown(segment(2, 1, (2, 1, EdgeKind.FILE), (0, 2, EdgeKind.FILE)))
    assert graph.predecessors(1).tolist() == [2]
    assert graph.successors(0).tolist() == [2]
    order = graph.order()
    assert order is not None
    assert order.tolist() == [0, 2, 1]


def test_a_cycle_across_segments_is_found() -> None:
    graph = (
        Graph()
        .grown(segment(0, 2, (0, 1, EdgeKind.FILE)))
        .grown(segment(2, 1, (1, 2, EdgeKind.FILE), (2, 0, EdgeKind.FILE)))
    )
    assert graph.order() is None
    assert graph.cycle() == [0, 1, 2]


def test_what_only_hangs_behind_a_cycle_is_not_in_it() -> None:
    graph = Graph().grown(
        segment(0, 4, (1, 2, EdgeKind.FILE), (2, 1, EdgeKind.FILE), (2, 0, EdgeKind.FILE), (0, 3, EdgeKind.FILE))
    )
    assert graph.cycle() == [1, 2]


def test_the_longest_way_of_a_graph_with_a_cycle_is_refused() -> None:
    graph = Graph().grown(segment(0, 2, (0, 1, EdgeKind.FILE), (1, 0, EdgeKind.FILE)))
    with pytest.raises(ValueError, match="cycle"):
        graph.depths()


def test_rows_take_room_for_their_stretch_only() -> None:
    rows = Rows(np.array([1_000_000, 1_000_000, 1_000_002], np.int32), np.array([5, 6, 7], np.int32))
    assert len(rows.indptr) == 4
    assert rows.of(1_000_000).tolist() == [5, 6]
    assert rows.of(1_000_001).tolist() == rows.of(3).tolist() == rows.of(2_000_000).tolist() == []


def test_a_long_chain_needs_no_recursion() -> None:
    count = 20_000
    pairs = [(i + 1, i, EdgeKind.FILE) for i in range(count - 1)]
    graph = Graph().grown(segment(0, count, *pairs))
    order = graph.order()
    assert order is not None
    assert order.tolist() == list(range(count - 1, -1, -1))
    assert graph.critical_path_seconds(np.ones(count)) == count
