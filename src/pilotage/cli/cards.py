"""A failure as a card: the cause, how it ended, what it took, where, its last words, what to do, and whether it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotage.cli.output import shown
from pilotage.cli.words import duration, one_line, plural, table
from pilotage.model.package_words import parameters_text
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.model.package_words import PackageWords
    from pilotage.model.progress import FailureCard, FailureGroup, Progress

STDERR_LINES_MAX = 10
UNMADE_SHOWN_MAX = 20


def peak_texts(peak_bytes: int | None, *, below_bytes: int | None) -> Iterator[str]:
    """How much memory was used at once, or below what that was; nothing where neither is known."""
    if peak_bytes is not None:
        yield f"peak memory {size_text(peak_bytes)}"
    elif below_bytes is not None:
        yield f"peak memory below {size_text(below_bytes)}"


def unmade_lines(progress: Progress) -> Iterator[str]:
    """What a job was run for and has not made."""
    for each in progress.unmade[:UNMADE_SHOWN_MAX]:
        why_not = f": {each.why}" if each.why else ""
        yield f"{one_line(f'{each.target} was asked for and was not made{why_not}')}\n"
    if len(progress.unmade) > UNMADE_SHOWN_MAX:
        yield f"… and {len(progress.unmade) - UNMADE_SHOWN_MAX:,} more that were asked for and were not made\n"


def headline(job: str, group: FailureGroup) -> str:
    """One line on a kind of failure, for those who watch."""
    card = group.card
    others = f" and {plural(group.count - 1, 'other')}" if group.count > 1 else ""
    said = first_line(card.exit_message)
    told = f": {said}" if said else ""
    again = "; tried again" if card.again else ""
    return one_line(f"{called(job, card.package, card.words)}{others} failed ({why(card)}){told}{again}")


def why(card: FailureCard) -> str:
    """The cause in a word or two: why the attempt failed, and why the package was given up, if it was."""
    parts = [part for part in (card.reason or card.exit_code, card.cause) if part]
    return ", ".join(dict.fromkeys(parts)) or "unknown"


def first_line(text: str) -> str:
    """What a message says to people; below it stand the last lines of the program."""
    return text.strip().split("\n", 1)[0]


def card_lines(job: str, card: FailureCard, *, count: int = 1, indent: str = "  ") -> Iterator[str]:
    """The lines of a card, each with its end."""
    inner = f"{indent}  "
    yield f"{indent}{plural(count, 'package')}: {one_line(why(card))}\n"
    place = called(job, card.package, card.words)
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
    yield f"{inner}{_future(card)}\n"
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
    lines = [line.rstrip() for line in shown(message).strip().split("\n")]
    if not lines[0]:
        return
    yield f"{indent}{lines[0]}\n"
    for line in lines[1:][-STDERR_LINES_MAX:]:
        yield f"{indent}  | {line}\n"


def _future(card: FailureCard) -> str:
    if card.again:
        return f"it will be tried again{f' at {moment(card.again_at)}' if card.again_at is not None else ''}"
    if card.cause == "upstream":
        return "it was not run: what it needs was not made"
    return "it will not be tried again by itself"


def undeclared_lines(progress: Progress) -> Iterator[str]:
    """What packages left behind that no output declares, and what would keep it."""
    if progress.undeclared:
        yield "left behind, and gone\n"
    for each in progress.undeclared:
        yield f"  {one_line(called(progress.job, each.package, each.words))}: {one_line(each.message)}\n"
        if each.keep:
            yield f"    to keep such files: {one_line(each.keep)}\n"
            if "{tag}" in each.keep:
                yield "    and let the command write them so: {tag} gives each package a name of its own\n"


def called(job: str, package: str, words: PackageWords | None) -> str:
    """A package as its owner knows it: by its name and its parameters, where anybody knows them, and by its place."""
    known = f"{words.name} {parameters_text(words.parameters)}".strip() if words is not None else ""
    return f"{job}/{package}" + (f" ({known})" if known else "")


def failure_lines(progress: Progress) -> Iterator[str]:
    """Every failure of a job, grouped by cause, and what to do about them."""
    if not progress.failures:
        return
    yield "failures\n"
    for group in progress.failures:
        yield from card_lines(progress.job, group.card, count=group.count)
    told = sum(group.count for group in progress.failures)
    if told < progress.failed:
        words = f"job={progress.job} and state=ABORTED"
        yield f'  and {plural(progress.failed - told, "other")}; see them with: pilotage query "{one_line(words)}"\n'


def binary_lines(attempt: int | None, binaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The binaries that ran in an attempt: when each began, how long it ran, and how it ended."""
    yield f"  binaries of attempt {attempt}\n"
    yield from table(map(_binary, binaries), indent="    ")


def _binary(binary: Mapping[str, Any]) -> tuple[object, ...]:
    ended = f"signal {binary['signal']}" if binary.get("signal") else f"exit code {binary.get('exit_status')}"
    said = ended if binary.get("signal") or binary.get("exit_status") is not None else ""
    took = duration(round(binary["seconds"], 3))
    return binary["number"], binary.get("name"), moment(binary["started_at"]), took, said, binary.get("reason")
