"""`pilotage rules`, `schema`, `software` and `completion`: retry rules, schemas, command lines, shell completion."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import WholeHelp, document_argument, format_option, load_document, output_option
from pilotage.cli.shared.output import columns, duration, emit, plural, print_message, printable

if TYPE_CHECKING:
    from pilotage.app.documents.retry_rules import RetryForecast, RuleLine

_INDENT = "  "
TIMES_MAX = 1000


@click.command()
@document_argument
@format_option
@click.option("--package", metavar="PATH", default="", help="Show only this package: 1.2.1, its path, or its name.")
@click.option("--reason", metavar="REASON", help="Suppose that attempts fail for REASON, such as out-of-memory.")
@click.option(
    "--exit-code", type=int, metavar="N", help="Suppose that they end with exit code N, for rules that match it."
)
@click.option(
    "--message", metavar="TEXT", default="", help="Suppose that their logs contain TEXT, for rules that match it."
)
@click.option(
    "--times",
    type=click.IntRange(1, TIMES_MAX),
    default=5,
    show_default=True,
    help="Suppose N such failures in a row.",
)
@click.option(
    "--sites",
    "site_count",
    type=click.IntRange(1, TIMES_MAX),
    metavar="N",
    help="Suppose that there are N sites, which fail in turn; without it, each failure is at another site.",
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
    """Show how failed attempts are retried.

    Without FILE, the default rule for each reason is shown. With --reason, --exit-code or --message: what would happen
    after the first such failure, the second, and so on, by the rules of FILE's packages or by the defaults. Nothing runs.
    """
    asked = reason is not None or exit_code is not None or bool(message)
    if file is not None and not asked:
        raise click.UsageError("Which failure? Use --reason, --exit-code or --message.")
    if package and file is None:
        raise click.UsageError("--package names a package of FILE: name FILE, too.")
    import_numpy_quickly()
    from pilotage import app
    from pilotage.app.documents import retry_rules as known

    if not asked:
        lines = (f"{line}\n" for line in _table(known.grouped_rules()))
        emit([app.json_text(known.default_rules())] if as_json else lines)
        return
    failure = known.FailureCase(
        reason=reason if reason is not None else known.DEFAULT_REASON,
        exit_code=exit_code,
        message=message,
        times=times,
        sites=site_count or 0,
    )
    if file is None:
        foreseen = [known.forecast_retries(failure)]
    else:
        loaded = load_document(file, source_format)
        foreseen = known.forecast_document(loaded, failure, package=package)
        for late in loaded.expansion.late:
            print_message(f"stage {late.stage} ({late.name}) is late: its packages are not known yet")
    emit([app.json_text(foreseen)] if as_json else (f"{printable(line)}\n" for line in _answers(foreseen)))


def _table(rows: dict[RuleLine, list[str]]) -> Iterator[str]:
    for line, reasons in rows.items():
        counted = "counted" if line.counted else "not counted"
        yield ", ".join(reasons)
        yield from _wrapped(line.done if line.changes == "nothing" else f"{line.done}: {line.changes}")
        yield from _wrapped(f"{counted}; {line.bounded} ({line.setting})")
        yield from _wrapped(f"why: {line.why}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, columns(), initial_indent=_INDENT, subsequent_indent=_INDENT * 2, break_on_hyphens=False)


def _answers(foreseen: list[RetryForecast]) -> Iterator[str]:
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
            tried = f"with a single site: {plural(alone.attempts, 'attempt')}{pauses}"
            yield from _wrapped(f"{tried}; then {_words('give-up', alone.cause)} (--sites 1)")


def _words(action: str, cause: str | None) -> str:
    return {
        "give-up": f"given up: {cause}",
        "hold-job": "the job is held until it is released",
        "park": "the package is held until it is released",
    }[action]


# `pilotage schema`: the JSON Schema of documents, for editors.


@click.command()
@click.option("--sites", is_flag=True, help="Print the schema of sites.yaml instead.")
@output_option
def schema(output: str, *, sites: bool) -> None:
    """Print the JSON Schema of documents."""
    from pilotage import app

    if sites:
        from pilotage.app.sites.entries import schema as sites_schema

        emit([app.json_text(sites_schema())], output=output)
        return
    emit([app.json_text(app.document_schema())], output=output)


# `pilotage software`: command lines from Boutiques descriptors.


@click.group(cls=WholeHelp)
def software() -> None:
    """Work with descriptions of software."""


@software.command()
@click.argument("descriptor", type=click.Path(allow_dash=True))
@click.argument("invocation", type=click.Path(allow_dash=True))
def command(descriptor: str, invocation: str) -> None:
    """Print the command line of a Boutiques DESCRIPTOR for an INVOCATION, both JSON files.

    The command line is the one that `bosh exec simulate` prints. An invocation that bosh rejects is rejected, with all
    errors at once.
    """
    from pilotage import app

    emit([app.software_command(descriptor, invocation), "\n"])


# `pilotage completion`: scripts with which a shell completes commands, options and file names.

SHELLS = ("bash", "zsh", "fish")

# Bash splits `--format=s` into three words, which are joined again before click sees them. Bash expects the part after
# the equals sign as the completion, which is what click returns for an option with its value.
_BASH = """\
_pilotage_completion() {
    local words=() word type value glued=0 IFS=$'\\n'
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if ((${#words[@]})) && { [[ $word == = && ${words[-1]} == --* ]] || ((glued)); }; then
            words[-1]+=$word
            glued=$((! glued))
        else
            words+=("$word")
            glued=0
        fi
    done
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _PILOTAGE_COMPLETE=bash_complete "$1")
}

complete -F _pilotage_completion pilotage
"""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for your shell.

    Load it in each session, for example with `source <(pilotage completion bash)`.
    """
    if shell == "bash":
        emit([_BASH])
        return
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    complete = kind(root.command, {}, "pilotage", "_PILOTAGE_COMPLETE")
    emit([complete.source()])
