"""What a stream has said, as ranges of numbers: several of them as one, and back into the row of the stream."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import msgspec

from pilotage.book.rows import StreamRow

Range = tuple[int, int]
"""The first and the last of some numbers that follow each other."""

_decoder = msgspec.json.Decoder(list[tuple[int, int]])
_encode = msgspec.json.Encoder().encode


def heard_by(row: StreamRow) -> list[Range]:
    """The numbers that the row of a stream says were heard."""
    ahead = _decoder.decode(row.ahead)
    return united([(1, row.watermark), *ahead]) if row.watermark else united(ahead)


def highest_of(row: StreamRow) -> int:
    """The highest number that was heard of a stream, wherever there are holes below it; 0 where none was."""
    return max([row.watermark, *(last for _, last in _decoder.decode(row.ahead))])


def united(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, with none that touches the next."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Numbers as ranges."""
    return united((number, number) for number in numbers)


def contains(ranges: list[Range], number: int) -> bool:
    """Whether a number is in one of some ranges that are in order."""
    at = bisect.bisect_right(ranges, (number, 2**63)) - 1
    return at >= 0 and ranges[at][0] <= number <= ranges[at][1]


def size(ranges: Iterable[Range]) -> int:
    """How many numbers there are in ranges."""
    return sum(last - first + 1 for first, last in ranges)


def stream_row(row: StreamRow, ranges: list[Range]) -> StreamRow:
    """The row of a stream of which these numbers were heard."""
    watermark = ranges[0][1] if ranges and ranges[0][0] == 1 else 0
    ahead = ranges[1:] if watermark else ranges
    return msgspec.structs.replace(row, watermark=watermark, ahead=_encode(ahead).decode())
