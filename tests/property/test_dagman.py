"""DAGMan, whatever the text and whatever the job: nothing raises, and an export reads back as the same job."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman import read_dagman, write_dagman
from pilotage.language.formats.dagman.macros import Notes
from pilotage.language.formats.dagman.macros import expand as expand_macros
from pilotage.language.formats.dagman.parser import KEYWORDS
from pilotage.language.formats.dagman.values import InvalidValue, join_arguments, split_arguments, split_environment
from pilotage.language.formats.dagman.writer import environment, protected
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import (
    Binary,
    Definition,
    InputFile,
    Line,
    OutputFile,
    Package,
    Retry,
    RetryRule,
    Stage,
)

ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NAMES = ("A", "B", "S", "ALL_NODES", "S+A", "c")
WORDS = st.one_of(
    st.sampled_from(sorted(KEYWORDS)),
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            "a.sub",
            "b.dag",
            "PARENT",
            "CHILD",
            "EXTERNAL",
            "DIR",
            "NOOP",
            "DONE",
            "PRE",
            "POST",
            "HOLD",
            "DEFER",
            "{",
            "}",
        ]
    ),
    st.sampled_from(
        ['x="$(JOB)"', "y=$(x)", "APPEND", "UNLESS-EXIT", "RETURN", "1", "-7", "10%", "\\", '"', "'", "@=end"]
    ),
    ANY_TEXT,
)
DAG_TEXT = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12).map("\n".join)
SUBMIT_WORDS = st.one_of(
    st.sampled_from(
        [
            "executable = ./p",
            "arguments = ",
            "queue",
            "in",
            "from",
            "matching",
            "(",
            ")",
            "if",
            "else",
            "endif",
            "[1:2]",
        ]
    ),
    st.sampled_from(
        ["$(x)", "$(x:1)", "$Fpn(x)", "$CHOICE(x,1)", "$$([y])", "include : a.sub", "x = $(x)", "@=", "\\"]
    ),
    st.sampled_from(["transfer_input_files = a,b", "transfer_output_files = a", "input = a", "request_memory = 1 G"]),
    ANY_TEXT,
)
SUBMIT_TEXT = st.lists(st.lists(SUBMIT_WORDS, max_size=4).map(" ".join), max_size=8).map("\n".join)


@given(dag=DAG_TEXT, submit=SUBMIT_TEXT, other=DAG_TEXT)
@example(dag="JOB A a.sub \\", submit="executable @=", other="")
@example(dag="SPLICE S b.dag", submit="", other="SPLICE S b.dag")
def test_any_text_is_read_or_refused_and_what_is_read_expands(dag: str, submit: str, other: str) -> None:
    folder = MemoryFolder({"a.sub": submit, "b.dag": other})
    definition, report, _ = read_dagman(dag.encode(), file="x.dag", folder=folder)
    assert (definition is None) == bool(report.errors)
    if definition is not None:
        expand(definition, RecordingLists(folder), report)
        assert report.errors == []


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    definition, report, _ = read_dagman(data, file="x.dag", folder=MemoryFolder())
    assert (definition is None) == bool(report.errors)


@given(arguments=st.lists(ANY_TEXT, max_size=6).map(tuple))
def test_joined_arguments_split_into_the_same(arguments: tuple[str, ...]) -> None:
    assert split_arguments(f'"{join_arguments(arguments)}"') == arguments


@given(variables=st.dictionaries(st.text("ABC_", min_size=1, max_size=4), ANY_TEXT, max_size=4))
def test_a_written_environment_splits_into_the_same(variables: dict[str, str]) -> None:
    found = split_environment(environment(variables))
    assert not isinstance(found, InvalidValue)
    assert found == variables


@given(text=ANY_TEXT | SUBMIT_TEXT)
def test_a_protected_text_has_no_macros(text: str) -> None:
    assert expand_macros(protected(text), {"x": "1"}, Notes()) == text


FILE_TAIL = st.text(st.sampled_from("abz09._-$'\"{}%é "), max_size=6)
RETRIES = st.one_of(
    st.just(Retry()),
    st.builds(Retry, attempts_max=st.integers(1, 9)),
    st.builds(
        lambda times, code: Retry(attempts_max=times, rules=(RetryRule(exit_code=code, action="give-up"),)),
        st.integers(1, 9),
        st.integers(-3, 255),
    ),
)


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@st.composite
def jobs(draw: st.DrawFn) -> Definition:
    """A job of single-binary packages: earlier outputs and outside files as inputs, edges without files, sequences."""
    made: list[str] = []
    names: list[str] = []
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        lines = []
        for _ in range(draw(st.integers(1, 3))):
            packages = [_package(draw, made, names) for _ in range(draw(st.integers(1, 2)))]
            lines.append(Line(packages=tuple(packages)))
        stages.append(Stage(lines=tuple(lines)))
    return Definition(job="j", stages=tuple(stages))


def _package(draw: st.DrawFn, made: list[str], names: list[str]) -> Package:
    number = len(names)
    inputs = (
        [InputFile(name=name) for name in draw(st.lists(st.sampled_from(made), unique=True, max_size=3))]
        if made
        else []
    )
    if draw(st.booleans()):
        inputs.append(InputFile(name=f"outside-{number}", acquisition="self"))
    if draw(st.booleans()):
        inputs.append(InputFile(name=f"far-{number}", locator="/data/"))
    own = [f"f{number}-{i}{_literal(draw(FILE_TAIL).rstrip())}" for i in range(draw(st.integers(0, 2)))]
    streams = (f"out-{number}", f"err-{number}") if draw(st.booleans()) else ("", "")
    keyboard = draw(st.sampled_from(["", *made]))
    run = (draw(st.sampled_from(["./p", "bin/p", "/bin/p", "p"])), *map(_literal, draw(st.lists(ANY_TEXT, max_size=3))))
    after = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
    package = Package(
        name=f"n{number}{_literal(draw(FILE_TAIL))}",
        activity=draw(st.sampled_from(["reco", "a b", "1x", "é"])),
        retry=draw(RETRIES),
        priority=draw(st.none() | st.integers(-99, 99)),
        after=tuple(after),
        binaries=(
            Binary(
                run=run,
                inputs=tuple(inputs),
                outputs=tuple(OutputFile(name=name) for name in own),
                stdin=keyboard,
                stdout=streams[0],
                stderr=streams[1],
            ),
        ),
    )
    names.append(package.name)
    made.extend([*own, *(stream for stream in streams if stream)])
    return package


def _expanded(definition: Definition) -> Expansion:
    report = Report("j")
    found = expand(definition, RecordingLists(MemoryFolder()), report)
    assert report.errors == []
    assert found is not None
    return found


@settings(max_examples=40)
@given(definition=jobs())
def test_an_exported_job_reads_back_with_the_same_packages_edges_arguments_files_retries_and_priorities(
    definition: Definition,
) -> None:
    before = _expanded(definition)
    files, losses = write_dagman(before)
    assert list(losses) == []
    read, report, lost = read_dagman(files["j.dag"].encode(), file="j.dag", folder=MemoryFolder(files))
    assert report.errors == []
    assert list(lost) == []
    assert read is not None
    after = _expanded(read)
    assert _said(before) == _said(after)
    assert _edges(before) == _edges(after)


def _said(expansion: Expansion) -> list[object]:
    """What must survive of each package."""
    return [
        (
            package.path,
            package.name,
            package.activity,
            [binary.argv for binary in package.binaries],
            sorted(set(package.needed)),
            package.made,
            [(given.names, given.locator) for binary in package.binaries for given in binary.inputs if given.locator],
            package.declared.retry,
            package.declared.priority,
        )
        for package in expansion.packages()
    ]


def _edges(expansion: Expansion) -> set[tuple[int, int]]:
    return {(first, second) for first, second, _ in expansion.graph.edges()}


MUTATIONS: tuple[Callable[[str, int], str], ...] = (
    lambda text, at: text[:at] + text[at + 1 :],
    lambda text, at: text[:at] + text[at : at + 1] * 2 + text[at + 1 :],
    lambda text, at: text[:at] + "\\\n" + text[at:],
    lambda text, at: text[:at] + '"' + text[at:],
    lambda text, at: text[at:] + text[:at],
)


@settings(max_examples=40)
@given(
    definition=jobs(),
    changes=st.lists(st.tuples(st.sampled_from(MUTATIONS), st.integers(0, 10_000)), min_size=1, max_size=4),
)
def test_a_damaged_export_is_read_or_refused(
    definition: Definition, changes: list[tuple[Callable[[str, int], str], int]]
) -> None:
    files, _ = write_dagman(_expanded(definition))
    text = files["j.dag"]
    for change, at in changes:
        text = change(text, at % (len(text) + 1))
    read, report, _ = read_dagman(text.encode(), file="j.dag", folder=MemoryFolder(files))
    assert (read is None) == bool(report.errors)
