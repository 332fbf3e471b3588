"""The order of a small graph held as lists: how deep each of its nodes lies, and a loop where there is no order.

For graphs that are being read or drawn. The graph of a job, which may have a million packages, is in `graph.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Followers = Sequence[Sequence[int]]  # for each node, those that follow it


def followers(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """For each of `count` nodes those that follow it, from pairs (before, after)."""
    found: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges:
        found[before].append(after)
    return found


def depths(graph: Followers) -> list[int]:
    """The length of the longest way to each node; one in or behind a loop keeps what is known of it."""
    return _gone_through(graph)[0]


def find_loop(graph: Followers) -> list[int]:
    """The nodes of one loop, each followed by the next; empty where there is none."""
    waiting = _gone_through(graph)[1]
    left = [node for node, count in enumerate(waiting) if count]
    if not left:
        return []
    # Every node that is left follows another one that is left: going backwards must meet one for the second time.
    before = {after: node for node in left for after in graph[node]}
    at = left[0]
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = before[at]
    return path[seen[at] :][::-1]


def _gone_through(graph: Followers) -> tuple[list[int], list[int]]:
    """Kahn's algorithm: the depth of each node, and how many before it were never reached."""
    waiting = [0] * len(graph)
    for following in graph:
        for node in following:
            waiting[node] += 1
    found = [0] * len(graph)
    ready = [node for node, count in enumerate(waiting) if not count]
    while ready:
        at = ready.pop()
        for node in graph[at]:
            found[node] = max(found[node], found[at] + 1)
            waiting[node] -= 1
            if not waiting[node]:
                ready.append(node)
    return found, waiting
