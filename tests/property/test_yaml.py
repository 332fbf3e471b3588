"""What holds for every text and all data: the loader never fails, the writer loses nothing, JSON is JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pilotage.language.text.emit import write_yaml
from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.language.text.yaml import read_tree

SEEDS = [
    "pilotage: 1\nstages:\n  - each: {seed: 1..9}\n    run: ./a {seed}\n    outputs: [sim-{seed}.dat]\n  - run: b\n",
    '{"a": [1, 2.5, {"b": "x\\ud83d\\ude00"}, null],\n\t"c": {}}',
    "a: |\n  x\n   y\nb: >-\n  z\n\n  w\nc: 'it''s'\nd: \"a\\tb\"\n",
    "a: &x [1, {b: c}]\nd: *x\n? e\n: f\n",
    "é: ü\n# c\nlist:\n- a\n-\n  - b\n\u2028k: v\r\nz: 1\r",
]
# Those that are YAML by its own rules; a flow mapping is none of our names in braces.
YAML_SEEDS = [
    "pilotage: 1\nstages:\n  - each: {seed: 1..9}\n    outputs: [sim-1.dat, {name: b}]\n  - run: b\n",
    *SEEDS[2:],
]
PIECES = [
    "{", "}", "[", "]", ":", ": ", "- ", "\n", "\t", "  ", "'", '"', "\\", "&a ", "*a", "!x ", "|", ">", "#", "%", "---\n",
    "...\n", "? ", ",", "\r", "\x85", "\u2028", "\ufeff", "\0", "{x}", "{{y}}", "<<: ", "\ue000", "\ue001", "a", "1", "😀",
]  # fmt: skip
NAME_IN_BRACES = re.compile(r"\{[ \t]*\w[\w.\-]*[ \t]*\}")
NOT_TEXT = [
    "yes",
    "no",
    "010",
    "1_000",
    "1e5",
    ".5",
    "1:30",
    "2001-01-01",
    "=",
    "<<",
    "~",
    "{seed}",
    "x-{seed}",
    "---",
    "-",
]

texts = st.one_of(
    st.text(),
    st.sampled_from(NOT_TEXT),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text("ab \n", max_size=8),
)
scalars = st.one_of(texts, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
data = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)
finite_data = st.recursive(
    st.one_of(texts, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


@st.composite
def mutants(draw: st.DrawFn, seeds: Sequence[str] = SEEDS, *, changes_max: int = 5) -> str:
    """A valid document with a few pieces put in, taken out, or repeated."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, changes_max))):
        place = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 4))
        text = text[:place] + draw(st.sampled_from(["", *PIECES])) + text[place + length :]
    return text


def marks(node: Node) -> Iterator[Mark]:
    """Every place in a tree."""
    yield node.mark
    if isinstance(node, Listing):
        for item in node.items:
            yield from marks(item)
    elif isinstance(node, Table):
        for key, item in node.entries:
            yield key.mark
            yield from marks(item)


def check_places(tree: Node | None, report: Report) -> None:
    """Every mark lies in the text (its end included), and there is a tree or a reason."""
    assert tree is not None or report.errors
    places = [*marks(tree)] if tree is not None else []
    places += [Mark(problem.line, problem.column) for problem in report.errors if report.lines]
    for place in places:
        assert 1 <= place.line <= len(report.lines)
        assert 1 <= place.column <= len(report.lines[place.line - 1]) + 1


def same(node: Node | None, value: object) -> bool:
    """Whether a tree is what plain data looks like when it is read."""
    if isinstance(value, dict):
        if not isinstance(node, Table) or [*node.keys()] != [*value]:
            return False
        return all(same(item, wanted) for (_, item), wanted in zip(node.entries, value.values(), strict=True))
    if isinstance(value, list):
        return isinstance(node, Listing) and len(node.items) == len(value) and all(map(same, node.items, value))
    if not isinstance(node, Scalar):
        return False
    if isinstance(value, str):
        return node.text == value
    if isinstance(value, bool) or value is None:
        return node.plain and node.text == {True: "true", False: "false", None: "null"}[value]
    assert isinstance(value, (int, float))
    return node.plain and type(value)(node.text.replace(".inf", "inf")) == value


def outline(node: Node) -> object:
    """A tree without marks."""
    match node:
        case Scalar():
            return node.text, node.plain
        case Listing():
            return [outline(item) for item in node.items]
        case Table():
            return [(outline(key), outline(item)) for key, item in node.entries]


def outline_of_pyyaml(node: yaml.Node) -> object:
    """The same of PyYAML's own tree."""
    if isinstance(node, yaml.ScalarNode):
        return node.value, not node.style
    if isinstance(node, yaml.SequenceNode):
        return [outline_of_pyyaml(item) for item in node.value]
    return [(outline_of_pyyaml(key), outline_of_pyyaml(item)) for key, item in node.value]


@given(data)
def test_what_is_written_is_read_back(value: object) -> None:
    tree, report = read_tree(write_yaml(value).encode(), file="")
    assert report.errors == []
    assert same(tree, value)


@given(data)
def test_what_is_written_means_the_same_to_pyyaml(value: object) -> None:
    assert repr(yaml.safe_load(write_yaml(value))) == repr(value)


@given(finite_data, st.sampled_from([None, "\t", 2]))
def test_json_is_read_as_json(value: object, indent: str | int | None) -> None:
    for text in (json.dumps(value, indent=indent), json.dumps(value, indent=indent, ensure_ascii=False)):
        tree, report = read_tree(text.encode(), file="")
        assert report.errors == []
        assert same(tree, value)
        check_places(tree, report)


@given(st.binary())
@example(b"\xff\xfe")
@example(b"a\0")
@example(b"\xef\xbb\xbf\xef\xbb\xbfa: [")
def test_no_bytes_make_the_loader_fail(raw: bytes) -> None:
    check_places(*read_tree(raw, file=""))


@given(mutants())
@example("a: 'x\n\ty'\n \tb: c")
@example("a: {b\nc:' 1}\n")
@example("a:\n")
def test_every_mark_lies_in_the_text(text: str) -> None:
    check_places(*read_tree(text.encode(), file=""))


@given(mutants(YAML_SEEDS, changes_max=2))  # with more of them, hardly any is valid
def test_without_names_in_braces_the_tree_is_that_of_pyyaml(text: str) -> None:
    tree, report = read_tree(text.encode(), file="")
    is_json = text.lstrip("\ufeff \t\r\n").startswith(("{", "[", '"'))  # read by other rules than YAML's
    twice_marked = text.startswith("\ufeff\ufeff")  # we drop every mark at the beginning, PyYAML the first
    assume(not report.errors and not NAME_IN_BRACES.search(text) and not is_json and not twice_marked)
    assert tree is not None
    composed = yaml.compose(text, Loader=yaml.CSafeLoader)
    assert composed is not None
    assert outline(tree) == outline_of_pyyaml(composed)


@given(mutants())
def test_what_pyyaml_can_parse_is_never_a_syntax_error(text: str) -> None:
    _, report = read_tree(text.encode(), file="")
    assume(not NAME_IN_BRACES.search(text) and any(problem.code == "syntax" for problem in report.errors))
    try:
        events = [*yaml.parse(text, Loader=yaml.CSafeLoader)]
    except yaml.YAMLError:
        events = []
    assert events == []
