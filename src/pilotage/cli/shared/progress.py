"""Shows the progress of a job: bars on a terminal, otherwise a line now and then; and its failures as cards.

Nothing here reads a clock or asks a server: the caller passes in the progress and the time.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click

from pilotage.cli.shared.output import (
    COLUMNS_DEFAULT,
    columns,
    cut,
    duration,
    is_coloured,
    one_line,
    plural,
    print_message,
    printable,
    table,
    text_width,
)
from pilotage.model.answers import EndForecast, FailureGroup, Progress, StageProgress, parameters_text
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.model.answers import FailureCard, PackageWords, StoppedActivity


# A failure card: cause, exit status, resources, site and node, last lines of output, next step, and whether the package
# is retried.

STDERR_LINES_MAX = 10
UNMADE_SHOWN_MAX = 20
STALE_SHOWN_MAX = 5


def peak_texts(peak_bytes: int | None, *, below_bytes: int | None) -> Iterator[str]:
    """The peak memory, or an upper bound of it; nothing if neither is known."""
    if peak_bytes is not None:
        yield f"peak memory {size_text(peak_bytes)}"
    elif below_bytes is not None:
        yield f"peak memory below {size_text(below_bytes)}"


def unmade_lines(progress: Progress) -> Iterator[str]:
    """The targets that the job did not make."""
    for each in progress.unmade[:UNMADE_SHOWN_MAX]:
        why_not = f": {each.why}" if each.why else ""
        yield f"{one_line(f'{each.target} was asked for and was not made{why_not}')}\n"
    if len(progress.unmade) > UNMADE_SHOWN_MAX:
        yield f"… and {len(progress.unmade) - UNMADE_SHOWN_MAX:,} more that were asked for and were not made\n"


def headline(job: str, group: FailureGroup) -> str:
    """One line about a group of failures, shown while the job runs."""
    card = group.card
    others = f" and {plural(group.count - 1, 'other')}" if group.count > 1 else ""
    message = first_line(card.exit_message)
    ending = f": {message}" if message else ""
    again = "; will be retried" if card.again else ""
    return one_line(f"{package_label(job, card.package, card.words)}{others} failed ({cause_of(card)}){ending}{again}")


def cause_of(card: FailureCard) -> str:
    """The reason of the failed attempt and, if the package was given up, the cause."""
    if card.cause == "activity-stopped":
        return card.cause  # most of these have not failed
    parts = [part for part in (card.reason or card.exit_code, card.cause) if part]
    return ", ".join(dict.fromkeys(parts)) or "unknown"


def first_line(text: str) -> str:
    """The first line of a message; the lines below it are program output."""
    return text.strip().split("\n", 1)[0]


def card_lines(job: str, card: FailureCard, *, count: int = 1, indent: str = "  ") -> Iterator[str]:
    """The lines of a failure card."""
    inner = f"{indent}  "
    yield f"{indent}{plural(count, 'package')}: {one_line(cause_of(card))}\n"
    place = package_label(job, card.package, card.words)
    if card.words is None and card.path:
        place += f" ({card.path})"
    tried = f", attempt {card.attempt}" if card.attempt else ""
    where = " at ".join(part for part in ("", card.site) if part or card.site)
    host = f" on {card.node}" if card.node else ""
    such = "such as " if count > 1 else ""
    yield f"{inner}{such}{one_line(place + tried + where + host)}\n"
    if card.words is not None and card.words.command:
        yield f"{inner}$ {one_line(card.words.command)}\n"
    if ended := ", ".join(_endings(card)):
        yield f"{inner}{one_line(ended)}\n"
    yield from _message(card.exit_message, inner)
    yield f"{inner}{_retry_text(card)}\n"
    look = card.next_step or f"pilotage logs {job}/{card.package}"
    yield f"{inner}look further: {one_line(look)}\n"


def _endings(card: FailureCard) -> Iterator[str]:
    if card.exit_code:
        yield card.exit_code
    if card.signal is not None:
        yield f"signal {card.signal}{_signal_name(card.signal)}"
    elif card.exit_status is not None:
        yield f"exit status {card.exit_status}"
    yield from peak_texts(card.peak_memory_bytes, below_bytes=card.peak_memory_below_bytes)


def _signal_name(number: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _message(message: str, indent: str) -> Iterator[str]:
    lines = [line.rstrip() for line in printable(message).strip().split("\n")]
    if not lines[0]:
        return
    yield f"{indent}{lines[0]}\n"
    for line in lines[1:][-STDERR_LINES_MAX:]:
        yield f"{indent}  | {line}\n"


def _retry_text(card: FailureCard) -> str:
    if card.again:
        return f"it will be retried{f' at {moment(card.again_at)}' if card.again_at is not None else ''}"
    if card.cause == "activity-stopped":
        return "it will not be retried: its activity was stopped"
    if card.cause == "upstream":
        return "it did not run: its inputs were not made"
    return "it will not be retried automatically"


def stale_lines(progress: Progress) -> Iterator[str]:
    """The results that are stale, and how to make them again."""
    if not progress.stale:
        return
    are = "result is" if progress.stale == 1 else "results are"
    yield f"{progress.stale:,} {are} stale: inputs were made again with other contents than were read\n"
    for each in progress.stale_results[:STALE_SHOWN_MAX]:
        more = f" and {len(each.files) - 1:,} more" if len(each.files) > 1 else ""
        label = package_label(progress.job, each.package, each.words)
        yield f"  {one_line(f'{label}: {each.files[0]}{more}')}\n"
        yield f"    run it again with: pilotage retry --force {one_line(progress.job)}/{each.package}\n"
    if progress.stale > STALE_SHOWN_MAX:
        yield f"  … and {progress.stale - STALE_SHOWN_MAX:,} more; or run the document again, which runs all of them\n"


def undeclared_lines(progress: Progress) -> Iterator[str]:
    """Files that packages wrote without declaring them as outputs, and how to keep them."""
    if progress.undeclared:
        yield "files that no output declares, discarded\n"
    for each in progress.undeclared:
        yield f"  {one_line(package_label(progress.job, each.package, each.words))}: {one_line(each.message)}\n"
        if each.keep:
            yield f"    to keep such files: {one_line(each.keep)}\n"
            if "{tag}" in each.keep:
                yield "    and let the command write that name: {tag} is different for each package\n"


def package_label(job: str, package: str, words: PackageWords | None) -> str:
    """A package with its job and number, and with its name and parameters if known."""
    known = f"{words.name} {parameters_text(words.parameters)}".strip() if words is not None else ""
    return f"{job}/{package}" + (f" ({known})" if known else "")


def stopped_lines(stopped: Iterable[StoppedActivity]) -> Iterator[str]:
    """The activities that were stopped, why, and how to go on."""
    for each in stopped:
        yield f"stopped: {one_line(each.message)}\n"
        yield f"  go on: {one_line(each.next_step)}\n"


def failure_lines(progress: Progress) -> Iterator[str]:
    """The failures of a job, grouped by cause, with the next steps; activities that were stopped come first."""
    yield from stopped_lines(progress.stopped)
    if not progress.failures:
        return
    yield "failures\n"
    for group in progress.failures:
        yield from card_lines(progress.job, group.card, count=group.count)
    listed = sum(group.count for group in progress.failures)
    if listed < progress.failed:
        words = f"job={progress.job} and state=ABORTED"
        yield f'  and {plural(progress.failed - listed, "other")}; see them with: pilotage query "{one_line(words)}"\n'


def binary_lines(attempt: int | None, binaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The binaries that ran in an attempt: when each began, how long it ran, and how it ended."""
    yield f"  binaries of attempt {attempt}\n"
    yield from table(map(_binary, binaries), indent="    ")


def _binary(binary: Mapping[str, Any]) -> tuple[object, ...]:
    ended = f"signal {binary['signal']}" if binary.get("signal") else f"exit code {binary.get('exit_status')}"
    outcome = ended if binary.get("signal") or binary.get("exit_status") is not None else ""
    took = duration(round(binary["seconds"], 3))
    return binary["number"], binary.get("name"), moment(binary["started_at"]), took, outcome, binary.get("reason")


LINE_SECONDS = 5.0
"""Without a terminal, the least time between two lines."""
WINDOW_SECONDS = 60.0
"""The time over which the rate is measured."""
NAME_CELLS_MAX = 24
BAR_CELLS_MAX = 40
LINES_DEFAULT = 24
_LINES_BESIDE_STAGES = 4
_UP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[{}A", "\r\x1b[2K", "\x1b[J"


class Meter:
    """Measures how many packages end per second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, progress: Progress, *, now: float) -> None:
        """Record the number of packages that have ended by now."""
        self._samples.append((now, ended_count(progress) - progress.adopted))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """Packages per second; 0 while it is unknown."""
        if len(self._samples) < 2:
            return 0.0
        (begin, before), (end, after) = self._samples[0], self._samples[-1]
        return max(0, after - before) / (end - begin) if end > begin else 0.0

    def left_seconds(self, progress: Progress) -> float | None:
        """The time for the remaining packages at this rate; None if it is unknown."""
        rate = self.per_second
        late = any(stage.late for stage in progress.stages)
        return None if rate <= 0 or late else (progress.packages - ended_count(progress)) / rate


def ended_count(progress: Progress | StageProgress) -> int:
    """The number of packages that have ended, in whatever state."""
    return progress.done + progress.failed + progress.cancelled


def counts_line(progress: Progress, meter: Meter | None = None) -> str:
    """The counts on one line; with a meter also the rate and the remaining time, as forecast or at this rate."""
    parts = [f"{progress.done:,} of {plural(progress.packages, 'package')} done"]
    named = {
        "running": progress.running,
        "failed": progress.failed,
        "cancelled": progress.cancelled,
        "retrying": progress.retrying,
        "healed": progress.healed,
        "adopted": progress.adopted,
        "dropped": progress.dropped,
    }
    parts += [f"{count:,} {word}" for word, count in named.items() if count]
    forecast = progress.forecast if holds(progress.forecast, now=progress.now) else None
    if meter is not None and meter.per_second:
        parts.append(rate_text(meter.per_second))
        left = meter.left_seconds(progress) if forecast is None else None
        if left:
            parts.append(f"{duration(_rough(left))} left")
    if meter is not None and forecast is not None and not progress.held:
        parts.append(end_text(forecast, now=progress.now))
    if progress.moving:
        parts.append(one_line(progress.moving))
    trouble = f"; {one_line(progress.trouble)}" if progress.trouble else ""
    return ", ".join(parts) + (" (held)" if progress.held else "") + trouble


_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


_OVERDUE_SECONDS_MAX = 60.0  # by then there is another forecast, if anything is known


def holds(forecast: EndForecast | None, *, now: float) -> bool:
    """Whether there is a forecast, and it is not long past: a job whose sites are lost is not about to be done."""
    return forecast is not None and now <= forecast.high_at + _OVERDUE_SECONDS_MAX


def end_text(forecast: EndForecast, *, now: float) -> str:
    """When a job will be over, with the interval: `done in about 12 min (9 to 20)`."""
    median, low, high = (max(0.0, at - now) for at in (forecast.median_at, forecast.low_at, forecast.high_at))
    if not high:
        return "expected to be done by now"
    size, unit = next((each for each in _UNITS if max(median, 1.0) >= 2.0 * each[0]), _UNITS[-1])
    shown = [each / size for each in (median, low, high)]
    fine = size > 1.0 and shown[0] < 10.0  # 2 min (2 to 3) would say little
    about, least, most = (f"{each:.1f}" if fine and each < 10.0 else f"{each:.0f}" for each in shown)
    return f"done in about {about} {unit} ({least} to {most})"


def rate_text(per_second: float) -> str:
    """A rate per second, minute or hour, so that the number is at least 1 if possible."""
    for factor, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * factor >= 1 or unit == "h":
            value = per_second * factor
            return f"{value:,.0f}/{unit}" if value >= 10 else f"{value:.1f}/{unit}"
    return ""


def _rough(seconds: float) -> float:
    """An estimated time, rounded according to its size."""
    step = 1 if seconds < 60 else 5 if seconds < 600 else 60
    return max(step, round(seconds / step) * step)


class ProgressDisplay(Protocol):
    """Shows the progress of a job."""

    def show(self, progress: Progress, *, now: float) -> None:
        """Show the progress at a time."""
        ...

    def close(self) -> None:
        """Stop; the last state stays on the screen."""
        ...


class TroubleOnly:
    """Prints only what delays a job, for `--json`."""

    def __init__(self) -> None:
        self._last_trouble = ""

    def show(self, progress: Progress, *, now: float) -> None:
        """Print each trouble once."""
        if progress.trouble and progress.trouble != self._last_trouble:
            print_message(f"{progress.job}: {one_line(progress.trouble)}")
        self._last_trouble = progress.trouble

    def close(self) -> None:
        """Do nothing."""


def choose_display() -> ProgressDisplay:
    """BarDisplay if standard error is a terminal that can draw them, otherwise lines."""
    drawn = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    return BarDisplay() if drawn else LineDisplay()


class _NewFailures:
    """Remembers which groups of failures were printed, so that each is printed once."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str, str]] = set()

    def new(self, groups: Iterable[FailureGroup]) -> list[FailureGroup]:
        found = []
        for group in groups:
            kind = (group.card.cause, group.card.reason, group.card.exit_code)
            if kind not in self._shown and group.card.cause != "upstream":
                self._shown.add(kind)
                found.append(group)
        return found


class LineDisplay:
    """Prints a line now and then, and one for each group of failures."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._failures = _NewFailures()
        self._shown_at: float | None = None
        self._last_line = ""
        self._trouble = ""

    def show(self, progress: Progress, *, now: float) -> None:
        """Print a line if the counts have changed and the last line is old enough."""
        self._meter.note(progress, now=now)
        for group in self._failures.new(progress.failures):
            print_message(headline(progress.job, group))
        if self._shown_at is None:
            self._shown_at = now  # the first line comes with the first change
        elif now - self._shown_at >= LINE_SECONDS or (progress.trouble and progress.trouble != self._trouble):
            line = counts_line(progress, self._meter)
            if line != self._last_line:
                print_message(f"{progress.job}: {line}")
            self._shown_at, self._last_line = now, line
        self._trouble = progress.trouble

    def close(self) -> None:
        """Do nothing."""


class BarDisplay:
    """Draws a bar for each stage and a line of counts, and redraws them in place."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._failures = _NewFailures()
        self._drawn = 0  # lines

    def show(self, progress: Progress, *, now: float) -> None:
        """Redraw the bars."""
        self._meter.note(progress, now=now)
        above = [headline(progress.job, group) for group in self._failures.new(progress.failures)]
        width, height = _terminal()
        lines = [cut(printable(line), width - 1) for line in above]
        board = board_lines(progress, self._meter, width=width - 1, height=height, style=_style())
        self._write([*lines, *board])
        self._drawn = len(board)

    def close(self) -> None:
        """Do nothing: the last drawing stays."""
        self._drawn = 0

    def _write(self, lines: Sequence[str]) -> None:
        up = _UP.format(self._drawn) if self._drawn else ""
        text = up + "".join(f"{_CLEAR_LINE}{line}\n" for line in lines) + _CLEAR_BELOW
        encoding = sys.stderr.encoding or "ascii"
        # click must not strip the escape sequences: whether to use colours is already decided.
        click.echo(text.encode(encoding, "replace").decode(encoding), err=True, nl=False, color=True)


class Style:
    """The characters of a bar, and whether they are coloured."""

    def __init__(self, *, encoding: str, coloured: bool) -> None:
        """Choose characters that the encoding has."""
        try:
            "━─".encode(encoding)
            self.done, self.failed, self.rest = "━", "━" if coloured else "x", "─"
        except (UnicodeEncodeError, LookupError):
            self.done, self.failed, self.rest = "#", "x", "-"
        self.coloured = coloured

    def paint(self, text: str, *, fg: str | None = None, dim: bool | None = None) -> str:
        """A text in a colour or dimmed, if colours are on."""
        return click.style(text, fg=fg, dim=dim) if self.coloured and text else text


def _style() -> Style:
    return Style(encoding=sys.stderr.encoding or "ascii", coloured=is_coloured())


def _terminal() -> tuple[int, int]:
    """The width and height of the terminal of standard error."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        return columns(), LINES_DEFAULT
    setting = os.environ.get("COLUMNS", "")
    width = int(setting) if setting.isdigit() and int(setting) else size.columns or COLUMNS_DEFAULT
    return max(width, 20), max(size.lines or LINES_DEFAULT, 6)  # a terminal may report no size


def board_lines(progress: Progress, meter: Meter, *, width: int, height: int, style: Style) -> list[str]:
    """All lines of the drawing: as many stages as fit, and the counts of the job."""
    stages = [stage for stage in progress.stages if stage.packages or stage.late]
    room = max(1, height - _LINES_BESIDE_STAGES)
    hidden = max(0, len(stages) - room)
    if hidden:
        # Hide stages that have ended first, then those that have not started.
        first = next((at for at, stage in enumerate(stages) if ended_count(stage) < stage.packages or stage.late), 0)
        first = min(first, hidden)
        stages = stages[first : first + room]
    names = max((text_width(_name(stage)) for stage in stages), default=0)
    lines = [_stage_line(stage, names=names, width=width, style=style) for stage in stages]
    if hidden:
        lines.append(cut(f"  … and {plural(hidden, 'more stage')}", width))
    lines.append(cut(f"{printable(progress.job)}: {counts_line(progress, meter)}", width))
    return lines


def _name(stage: StageProgress) -> str:
    return cut(printable(stage.name or f"stage {stage.stage}").replace("\n", " "), NAME_CELLS_MAX)


def _stage_line(stage: StageProgress, *, names: int, width: int, style: Style) -> str:
    name = _name(stage)
    head = f"  {name}{' ' * (names - text_width(name))}  "
    if stage.late and not stage.packages:
        return cut(f"{head}not known yet", width)
    tail = f"  {ended_count(stage):,}/{stage.packages:,}"
    if stage.running:
        tail += f"  {stage.running:,} running"
    failed = f"  {stage.failed + stage.cancelled:,} failed" if stage.failed + stage.cancelled else ""
    room = min(BAR_CELLS_MAX, width - text_width(head) - len(tail) - len(failed))
    if room < 4:
        return cut(f"{head}{tail.strip()}{failed}", width)
    return head + _bar(stage, room, style) + tail + style.paint(failed, fg="red")


def _bar(stage: StageProgress, room: int, style: Style) -> str:
    total = max(1, stage.packages)
    bad = stage.failed + stage.cancelled
    # A single failure in a million must be visible, and the bar is full only when all packages have ended.
    bad_cells = min(room, max(1, round(bad * room / total))) if bad else 0
    filled = ended_count(stage) * room // total
    done_cells = max(0, filled - bad_cells)
    if stage.done == stage.packages:
        done_cells = room
    rest = room - done_cells - bad_cells
    return (
        style.paint(style.done * done_cells, fg="green")
        + style.paint(style.failed * bad_cells, fg="red")
        + style.paint(style.rest * rest, dim=True)
    )
