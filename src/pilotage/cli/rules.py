"""`pilotage rules`: what is done when attempts fail, by default and for the packages of a document."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import document_argument, format_option, load_document
from pilotage.cli.output import columns, emit, say_to_reader, shown
from pilotage.cli.words import duration, plural

if TYPE_CHECKING:
    from pilotage.app.rules import Foreseen, RuleLine

_INDENT = "  "
TIMES_MAX = 1000


@click.command()
@document_argument
@format_option
@click.option("--package", metavar="PATH", default="", help="Only this package: 1.2.1, its path, or its name.")
@click.option("--reason", metavar="REASON", help="A failure that might come, such as out-of-memory.")
@click.option("--exit-code", type=int, metavar="N", help="The exit code it ends with, for rules that look at it.")
@click.option("--message", metavar="TEXT", default="", help="What its log says, for rules that look at it.")
@click.option(
    "--times",
    type=click.IntRange(1, TIMES_MAX),
    default=5,
    show_default=True,
    help="How often it fails so.",
)
@click.option(
    "--sites",
    "site_count",
    type=click.IntRange(1, TIMES_MAX),
    metavar="N",
    help="How many sites there are, of which each fails in its turn; always another unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value, for other programs.")
def rules(
    file: str | None,
    source_format: str,
    package: str,
    reason: str | None,
    exit_code: int | None,
    message: str,
    times: int,
    site_count: int | None,
    *,
    as_json: bool,
) -> None:
    """Show what is done when attempts fail.

    Without FILE, the default rule for each reason. With a reason, an exit code or a message: what would be done after
    the first such failure, the second, and so on, by the rules of FILE's packages, or by the defaults. Nothing is run.
    """
    asked = reason is not None or exit_code is not None or bool(message)
    if file is not None and not asked:
        raise click.UsageError("Which failure? Say --reason, --exit-code or --message.")
    if package and file is None:
        raise click.UsageError("--package is one of FILE's: name FILE, too.")
    import_numpy_quickly()
    from pilotage import app
    from pilotage.app import rules as known

    if not asked:
        told = (f"{line}\n" for line in _table(known.grouped_rules()))
        emit([app.json_text(known.default_rules())] if as_json else told)
        return
    failure = known.Asked(
        reason=reason if reason is not None else known.UNTOLD_REASON,
        exit_code=exit_code,
        message=message,
        times=times,
        sites=site_count or 0,
    )
    if file is None:
        foreseen = [known.foresee(failure)]
    else:
        loaded = load_document(file, source_format)
        foreseen = known.foresee_document(loaded, failure, package=package)
        for late in loaded.expansion.late:
            say_to_reader(f"stage {late.stage} ({late.name}) grows later: its packages are not known yet")
    emit([app.json_text(foreseen)] if as_json else (f"{shown(line)}\n" for line in _answers(foreseen)))


def _table(rows: dict[RuleLine, list[str]]) -> Iterator[str]:
    for line, reasons in rows.items():
        counted = "counted" if line.counted else "not counted"
        yield ", ".join(reasons)
        yield from _wrapped(line.done if line.changes == "nothing" else f"{line.done}: {line.changes}")
        yield from _wrapped(f"{counted}; {line.bounded} ({line.setting})")
        yield from _wrapped(f"why: {line.why}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, columns(), initial_indent=_INDENT, subsequent_indent=_INDENT * 2, break_on_hyphens=False)


def _answers(foreseen: list[Foreseen]) -> Iterator[str]:
    for each in foreseen:
        who = ", ".join(each.activities) or "a package without rules of its own"
        yield f"{who}: at most {plural(each.attempts_max, 'counted attempt')}"
        if each.bounded:
            yield from _wrapped(f"not counted; {each.bounded}")
        for answer in each.answers:
            yield from _wrapped(f"{answer.message} [{answer.rule}]")
            if answer.action != "restart":
                yield f"{_INDENT * 2}{_words(answer.action, answer.cause)}"
        if (alone := each.alone) is not None:
            pauses = f", with {duration(alone.pause_seconds)} of pauses between them" if alone.pause_seconds else ""
            tried = f"where there is one site only: {plural(alone.attempts, 'attempt')}{pauses}"
            yield from _wrapped(f"{tried}; then {_words('give-up', alone.cause)} (--sites 1)")


def _words(action: str, cause: str | None) -> str:
    return {
        "give-up": f"given up: {cause}",
        "hold-job": "the job is held until somebody releases it",
        "park": "the package is held until somebody releases it",
    }[action]
