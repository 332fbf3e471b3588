"""The order in which sites went to sleep, which a restart keeps."""

from __future__ import annotations

from pilotage.engine.selection.status import SleepQueue


def test_sleepers_are_told_in_the_order_in_which_they_came() -> None:
    queue = SleepQueue()
    assert queue.next_order == 1
    for index in (7, 3, 5):
        queue.add(index, queue.next_order)
    assert (list(queue), queue.next_order) == ([7, 3, 5], 4)
    queue.remove(3, 2)
    assert (list(queue), queue.next_order) == ([7, 5], 4)
    queue.add(3, 2)
    assert list(queue) == [7, 3, 5], "after a restart it has the place that it had"
    queue.remove(5, 3)
    assert queue.next_order == 3


def test_a_sleeper_is_removed_only_from_its_own_place() -> None:
    queue = SleepQueue()
    queue.add(7, 1)
    for index, order in ((7, 2), (6, 1), (8, 1), (7, 0)):
        queue.remove(index, order)
    assert list(queue) == [7]
    queue.remove(7, 1)
    assert (list(queue), queue.next_order) == ([], 1)
