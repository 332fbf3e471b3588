"""Queues of ready packages: numbers in chunks that share the moment they became ready, four bytes each."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator


class Chunk:
    """Packages that became ready at one moment; `head` is the next to be taken."""

    __slots__ = ("head", "numbers", "since")

    def __init__(self, since: float, numbers: array[int]) -> None:
        """Take the numbers over."""
        self.since = since
        self.numbers = numbers
        self.head = 0


class ReadyQueue:
    """First in, first out. A number that was put in stays until it is taken: whoever takes it asks whether it still counts.

    Whoever puts in again and again what no longer counts has to `keep` now and then.
    """

    __slots__ = ("_chunks", "_last", "size")

    def __init__(self) -> None:
        """Begin empty."""
        self._chunks: deque[Chunk] = deque()
        self._last: Chunk | None = None
        self.size = 0  # how many are in it, whether they still count or not

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[int]:
        """Every number that is in it, whether it still counts or not."""
        for chunk in self._chunks:
            yield from chunk.numbers[chunk.head :]

    def push(self, number: int, since: float) -> None:
        """Put one at the end."""
        last = self._last
        if last is None or last.since != since:
            last = self._last = Chunk(since, array("i"))
            self._chunks.append(last)
        last.numbers.append(number)
        self.size += 1

    def extend(self, numbers: Iterable[int], since: float) -> None:
        """Put many at the end."""
        chunk = Chunk(since, array("i", numbers))
        if chunk.numbers:
            self._last = chunk
            self._chunks.append(chunk)
            self.size += len(chunk.numbers)

    def clear(self) -> None:
        """Let go of all."""
        self._chunks.clear()
        self._last = None
        self.size = 0

    def keep(self, counts: Callable[[int], bool]) -> None:
        """Let go of what no longer counts, and of what is in it twice; the others stay in their order."""
        seen: set[int] = set()
        chunks, self._chunks = self._chunks, deque()
        self._last, self.size = None, 0
        for chunk in chunks:
            kept = [number for number in chunk.numbers[chunk.head :] if counts(number)]
            fresh = [number for number in dict.fromkeys(kept) if number not in seen]
            seen.update(fresh)
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
        """The first, and since when it is ready."""
        chunk = self._chunks[0]
        return chunk.numbers[chunk.head], chunk.since
