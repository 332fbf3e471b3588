"""In which order tests are handed out to several workers, so that all of them are busy until the end.

Each worker gets an equal stretch of the list, and who is done takes from the end of another's. So the files that take
long are dealt out first, like cards: those that mostly wait for other programs between those that compute. The many
quick tests fill the stretches up, and are what is left to share in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

WAITING = ("tests/acceptance/",)
COMPUTING = ("tests/docs/", "tests/property/", "tests/simulation/")


def dealt(nodes: Sequence[str], *, workers: int) -> list[int]:
    """The places of tests, named by their node ids, in the order in which they are handed out; a file stays together."""
    files: dict[str, list[int]] = {}
    quick: list[int] = []
    for place, node in enumerate(nodes):
        file = node.partition("::")[0]
        if file.startswith((*WAITING, *COMPUTING)):
            files.setdefault(file, []).append(place)
        else:
            quick.append(place)
    waiting, computing = ([file for file in files if file.startswith(kind)] for kind in (WAITING, COMPUTING))
    order: list[int] = []
    for worker in range(workers):
        cards = _mixed(waiting[worker::workers], computing[worker::workers])
        stretch = [place for file in cards for place in files[file]]
        room = max(0, (len(nodes) - len(order)) // (workers - worker) - len(stretch))  # as the scheduler cuts it
        order += [*stretch, *quick[:room]]
        del quick[:room]
    return order + quick


def _mixed(some: Sequence[str], others: Sequence[str]) -> list[str]:
    """Two lists as one, each spread evenly over it."""
    placed = [((at + 0.5) / len(each), name) for each in (some, others) for at, name in enumerate(each)]
    return [name for _, name in sorted(placed)]
