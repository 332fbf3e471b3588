"""Queues of ready packages: numbers in chunks that share the time they became ready, four bytes each."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator


class Chunk:
    """Packages that became ready at the same time; `head` is the next to take."""

    __slots__ = ("head", "numbers", "since")

    def __init__(self, since: float, numbers: array[int]) -> None:
        """Take over the numbers."""
        self.since = since
        self.numbers = numbers
        self.head = 0


class ReadyQueue:
    """First in, first out. A number stays until it is taken: the caller checks whether it is still valid.

    A caller that adds many numbers which become invalid must call `keep` now and then.
    """

    __slots__ = ("_chunks", "_last", "size")

    def __init__(self) -> None:
        """Begin empty."""
        self._chunks: deque[Chunk] = deque()
        self._last: Chunk | None = None
        self.size = 0  # entries, valid or not

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[int]:
        """Every number in the queue, valid or not."""
        for chunk in self._chunks:
            yield from chunk.numbers[chunk.head :]

    def push(self, number: int, since: float) -> None:
        """Add one at the end."""
        last = self._last
        if last is None or last.since != since:
            last = self._last = Chunk(since, array("i"))
            self._chunks.append(last)
        last.numbers.append(number)
        self.size += 1

    def extend(self, numbers: Iterable[int], since: float) -> None:
        """Add many at the end."""
        chunk = Chunk(since, array("i", numbers))
        if chunk.numbers:
            self._last = chunk
            self._chunks.append(chunk)
            self.size += len(chunk.numbers)

    def clear(self) -> None:
        """Remove all."""
        self._chunks.clear()
        self._last = None
        self.size = 0

    def keep(self, counts: Callable[[int], bool]) -> None:
        """Remove invalid and duplicate numbers; the others keep their order."""
        known: set[int] = set()
        chunks, self._chunks = self._chunks, deque()
        self._last, self.size = None, 0
        for chunk in chunks:
            kept = [number for number in chunk.numbers[chunk.head :] if counts(number)]
            fresh = [number for number in dict.fromkeys(kept) if number not in known]
            known.update(fresh)
            self.extend(fresh, chunk.since)

    def pop(self) -> int:
        """Take the first."""
        chunk = self._chunks[0]
        number = chunk.numbers[chunk.head]
        chunk.head += 1
        self.size -= 1
        if chunk.head == len(chunk.numbers):
            self._chunks.popleft()
            if chunk is self._last:
                self._last = None
        return number

    def first(self) -> tuple[int, float]:
        """The first number, and since when it is ready."""
        chunk = self._chunks[0]
        return chunk.numbers[chunk.head], chunk.since
