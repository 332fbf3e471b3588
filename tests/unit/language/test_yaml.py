"""The strict YAML loader: what it reads, what it refuses, and where it points."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from pilotage.language.text.tree import Listing, Mark, Node, Scalar, Table
from pilotage.language.text.tree_builder import ALIASED_NODES_MAX, DEPTH_MAX, PROBLEMS_MAX
from pilotage.language.text.yaml import SIZE_BYTES_MAX, ambiguity, read_tree
from pilotage.model.errors import Problem
from tests.kit.jobs import SWEEP


def plain_data(node: Node | None) -> object:
    """Mappings, lists and texts without their marks."""
    match node:
        case Table():
            return {key.text: plain_data(item) for key, item in node.entries}
        case Listing():
            return [plain_data(item) for item in node.items]
        case Scalar():
            return node.text
        case None:
            return None


def read(text: str) -> object:
    """The data of a text that must have no fault."""
    tree, report = read_tree(text.encode(), file="job.yaml")
    assert report.errors == []
    return plain_data(tree)


def faults(text: str | bytes) -> list[Problem]:
    """What is wrong with a text."""
    return read_tree(text if isinstance(text, bytes) else text.encode(), file="job.yaml")[1].errors


def codes(text: str | bytes) -> list[tuple[str, int, int]]:
    """The code and place of each fault."""
    return [(problem.code, problem.line, problem.column) for problem in faults(text)]


def test_the_ten_line_example_reads_as_it_stands() -> None:
    assert read(SWEEP) == {
        "pilotage": "1",
        "job": "sweep",
        "stages": [
            {
                "each": {"seed": "1..1000"},
                "run": "./simulate --seed {seed} --out sim-{seed}.dat",
                "outputs": ["sim-{seed}.dat"],
            },
            {"run": "./merge {inputs} --out result.dat", "inputs": ["sim-*.dat"], "outputs": ["result.dat"]},
        ],
    }


@pytest.mark.parametrize(
    "written, value",
    [
        ("[sim-{seed}.dat]", ["sim-{seed}.dat"]),
        ("[{seed}.dat, x]", ["{seed}.dat", "x"]),
        ("[{seed}]", ["{seed}"]),
        ("[ {seed} , { seed } ]", ["{seed}", "{ seed }"]),
        ("[{a}-{b.name}.dat]", ["{a}-{b.name}.dat"]),
        ("[{{seed}}, x{{seed}}y]", ["{{seed}}", "x{{seed}}y"]),
        ("{b: out/{c}.dat}", {"b": "out/{c}.dat"}),
        ("{b: {c}}", {"b": "{c}"}),
        ("{b: {c: {d}}}", {"b": {"c": "{d}"}}),
        ("{seed}", "{seed}"),
        ("{tool} --seed {seed}", "{tool} --seed {seed}"),
        ("[\"{seed}\", '{seed}']", ["{seed}", "{seed}"]),
        ("|\n  {seed} {\n  }", "{seed} {\n}"),
        ("[x, # {seed}\n y]", ["x", "y"]),
        ("{}", {}),
        ("{b: {}}", {"b": {}}),
        ("{b, c}", {"b": "", "c": ""}),
        ("[\ue000{seed}\ue001]", ["\ue000{seed}\ue001"]),
    ],
)
def test_a_name_in_braces_is_text_wherever_it_stands(written: str, value: object) -> None:
    assert read(f"a: {written}") == {"a": value}


def test_marks_behind_a_name_in_braces_are_those_of_the_text() -> None:
    tree, _ = read_tree(b"a: [x{seed}y, {b}, c]", file="job.yaml")
    assert isinstance(tree, Table)
    listing = tree.get("a")
    assert isinstance(listing, Listing)
    assert [item.mark for item in listing.items] == [Mark(1, 5), Mark(1, 15), Mark(1, 20)]


def test_columns_count_characters_not_bytes() -> None:
    tree, _ = read_tree("é: 😀\nb: 'ü' # x".encode(), file="job.yaml")
    assert tree == Table(
        (
            (Scalar("é", plain=True, mark=Mark(1, 1)), Scalar("😀", plain=True, mark=Mark(1, 4))),
            (Scalar("b", plain=True, mark=Mark(2, 1)), Scalar("ü", plain=False, mark=Mark(2, 4))),
        ),
        Mark(1, 1),
    )


def test_values_stay_the_text_that_was_written() -> None:
    assert read("[1.10, 010, no, ~, 1:30:00, 2024-01-01, 001..100]") == [
        "1.10", "010", "no", "~", "1:30:00", "2024-01-01", "001..100",
    ]  # fmt: skip


def test_an_absent_value_is_an_empty_plain_scalar_inside_the_text() -> None:
    tree, _ = read_tree(b"? a", file="job.yaml")
    assert isinstance(tree, Table)
    assert tree.get("a") == Scalar("", plain=True, mark=Mark(1, 4))


def test_a_byte_order_mark_is_dropped() -> None:
    assert read("\ufeffa: b") == {"a": "b"}


def test_an_alias_stands_for_what_its_anchor_names() -> None:
    assert read("a: &x [1, 2]\nb: *x") == {"a": ["1", "2"], "b": ["1", "2"]}


@pytest.mark.parametrize(
    "text",
    [
        '{\n\t"a":\t1,\n\t"b": [ ]\n}',
        '{"a": "\\/\\ud83d\\ude00\\u00e9\\n"}',
        '{"' + "k" * 2000 + '": 1}',
        '{"a"\n:\n1}',
        '["\x7f\u2028\x85", "{seed}", "[x]"]',
        '"only text"',
        '{"a":{"b":[[],{},"",0,-1.5e+3,true,false]}}',
    ],
)
def test_json_reads_like_json(text: str) -> None:
    def as_text(value: object) -> object:
        return {"True": "true", "False": "false"}.get(str(value), value)

    expected = json.loads(text, parse_int=str, parse_float=str)
    if isinstance(expected, dict) and "a" in expected and isinstance(expected["a"], dict):
        expected["a"]["b"] = [as_text(item) if isinstance(item, bool) else item for item in expected["a"]["b"]]
    assert read(text) == expected


def test_json_has_marks_too() -> None:
    tree, _ = read_tree(b'{\n\t"a": [1,\n  "x"]}', file="job.json")
    expected = Listing(
        (Scalar("1", plain=True, mark=Mark(2, 8)), Scalar("x", plain=False, mark=Mark(3, 3))), Mark(2, 7)
    )
    assert tree == Table(((Scalar("a", plain=False, mark=Mark(2, 2)), expected),), Mark(1, 1))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a: 1\nb: 2\na: 3\n", [("duplicate-key", 3, 1)]),
        ('{"a": 1,\n "a": 2}', [("duplicate-key", 2, 2)]),
        ("a: 1\n'a': 2\nb: {c: 1, c: 2}", [("duplicate-key", 2, 1), ("duplicate-key", 3, 11)]),
        ("a:\n\tb: 1", [("tab", 2, 1)]),
        ("a:\n  - x\n  \t- y", [("tab", 3, 3)]),
        ("a: b\n \tc", [("tab", 2, 2)]),
        ("a: b\n \tc: d", [("tab", 2, 2)]),
        ("a: |\n\tx", [("tab", 2, 1)]),
        ("-\ta: 1\n", [("tab", 1, 2)]),
        ("a: |\n  x\n\t# y\n", [("tab", 3, 1)]),
        (b"a: \xe9\n\xc3\xa9: \xff", [("not-utf8", 1, 4), ("not-utf8", 2, 4)]),
        ("a: b".encode("utf-16"), [("not-utf8", 1, 1)]),
        ("a: b".encode("utf-16-be"), [("not-utf8", 1, 1)]),
        ("a: b".encode("utf-32"), [("not-utf8", 1, 1)]),
        ("a: b\x00c", [("control-character", 1, 5)]),
        ("a: 'x\x1b'\na: 1", [("control-character", 1, 6), ("duplicate-key", 2, 1)]),
        ("[" * 100_000, [("too-deep", 1, DEPTH_MAX + 1)]),
        ('{"a":' * 100_000, [("too-deep", 1, 5 * DEPTH_MAX + 1)]),
        ("- " * 10_000, [("too-deep", 1, 2 * DEPTH_MAX + 1)]),
        ("a: &a [x, *a]", [("alias-cycle", 1, 11)]),
        ("a: *b", [("unknown-alias", 1, 4)]),
        ("a: &x [1, &x 2]\nb: &x 3", [("duplicate-anchor", 1, 11), ("duplicate-anchor", 2, 4)]),
        ("", [("empty-document", 1, 1)]),
        ("# only a comment\n", [("empty-document", 1, 1)]),
        ("---\n...\n", [("empty-document", 1, 1)]),
        ("a: 1\n---\nb: 2\n", [("several-documents", 2, 1)]),
        ("a: !!python/object:os.system x\nb: !!int 5", [("tag", 1, 4), ("tag", 2, 4)]),
        ("a: ! x", [("tag", 1, 4)]),
        ("b: &x {c: 1}\na:\n  <<: *x", [("merge-key", 3, 3)]),
        ("? [a]\n: b\n{c: d}: e", [("complex-key", 1, 3), ("complex-key", 3, 1)]),
        ("&x : a", [("empty-key", 1, 1)]),
        ("each: {seed:1..9}", [("missing-space", 1, 8)]),
    ],
)
def test_refused_with_its_place(text: str | bytes, expected: list[tuple[str, int, int]]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(
    "text, place, message, hint",
    [
        ("a: b: c", (1, 5), "`: ` inside an unquoted value", 'a: "b: c"'),
        ("a:b\nc: d", (2, 2), "line 1 has no space after its colon", "`a: b` on line 1"),
        ("a: 1\nb:2\nc: 3", (2, 1), "a space must follow its colon", "`b: 2`"),
        ("a: 1\n b: 2", (2, 3), "part of the value above", "indent"),
        ("a: 'x\nb: c\n", (1, 4), "opened here with `'` is never closed", "close it"),
        ("a: [x,\nb: c\n", (1, 4), "opened here with `[` is not closed", "close it with `]`"),
        ("a: {x: [y}\n", (1, 10), "list opened", ""),
        ('{"a": 1', (1, 1), "opened here with `{` is not closed", "close it with `}`"),
        ("a: [x[1].dat]", (1, 6), "`[` inside an unquoted value", '"x[1].dat"'),
        ("a: [x{b,c}.dat, y]", (1, 6), "`{` inside an unquoted value", '"x{b,c}.dat"'),
        ("a: {b: c}.dat", (1, 10), "text after the closing `}`", '"{b: c}.dat"'),
        ("a: [*.dat]", (1, 5), "begins with `*`", '"*.dat"'),
        ("a: @x", (1, 4), "cannot begin with `@`", '"@x"'),
        ("a: 'it's'", (1, 8), "text after the closing quote", "written twice"),
        ('a: "C:\\new\\qx"', (1, 11), "not an escape", "backslash"),
        ('a: "\\ud83d\\ude00"', (1, 7), "not an escape", "the character itself"),
        ("a: - b", (1, 4), "a list cannot begin here", "next line"),
        ("a: > x", (1, 6), "begins on the next line", "quote"),
        ("- a\nb: c", (2, 1), "expected a further `- `", "column"),
        ("a: b\n- c", (2, 1), "a list item among the keys", "under the key"),
        ("a:\n  b: 1\n c: 2", (3, 2), "expected a further key", "column"),
        ("a: ]", (1, 4), "cannot begin with `]`", "quote"),
        ("[a]\nb", (2, 1), "already ended", "brackets"),
    ],
)
def test_a_syntax_error_is_said_plainly(text: str, place: tuple[int, int], message: str, hint: str) -> None:
    [problem] = faults(text)
    assert (problem.code, problem.line, problem.column) == ("syntax", *place)
    assert message in problem.message
    assert hint in problem.hint


def test_faults_before_a_syntax_error_are_reported_with_it() -> None:
    assert codes("a: 1\na: !x 2\nb: [\n") == [("duplicate-key", 2, 1), ("tag", 2, 4), ("syntax", 3, 4)]


def test_a_duplicate_key_says_where_the_first_stands() -> None:
    [problem] = faults("x: 0\na: 1\na: 2")
    assert "first on line 2" in problem.message


def test_a_fault_tells_a_name_whole_unless_the_cut_one_is_shorter() -> None:
    [whole, cut] = faults(f"a: *{'n' * 60}\nb: *{'n' * 61}")
    assert f"`*{'n' * 60}`" in whole.message
    assert f"`*{'n' * 59}…`" in cut.message


def test_a_fault_carries_its_line_for_the_caret() -> None:
    [problem] = faults("x: 0\n\ta: 1 # here")
    assert problem.source == "\ta: 1 # here"


def test_the_first_tab_says_how_many_lines_have_one() -> None:
    [problem] = faults("a:\n\tb: 1\n\tc: 2\n")
    assert "2 lines have one" in problem.hint


def test_tabs_inside_texts_and_brackets_are_no_indentation() -> None:
    text = "a: 'x\n\ty'\nb: [1,\n\t2]\nc: |\n  x\n  \ty\n\nd:\te\n"
    assert read(text) == {"a": "x y", "b": ["1", "2"], "c": "x\n\ty\n", "d": "e"}


def test_a_byte_that_is_not_utf8_is_named_with_its_offset() -> None:
    [problem] = faults(b"\xef\xbb\xbfa: \xe9")
    assert "byte 0xE9 at offset 6" in problem.message
    assert "'é'" in problem.hint


def test_a_document_beyond_the_size_limit_is_refused_unread() -> None:
    data = b"[" * (SIZE_BYTES_MAX + 1)  # parsed, it would be too deep
    assert codes(data) == [("too-large", 0, 0)]


def test_anchors_that_explode_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert [problem.code for problem in faults("\n".join(lines))] == ["too-many-aliases"]


def test_as_many_aliases_as_the_limit_allows_are_read() -> None:
    entries = ", ".join(["*a"] * ALIASED_NODES_MAX)
    assert codes(f"a: &a x\nb: [{entries}]") == []
    assert codes(f"a: &a x\nb: [{entries}, *a]") == [("too-many-aliases", 2, 5 + 4 * ALIASED_NODES_MAX)]


def test_aliases_cannot_nest_deeper_than_the_text_may() -> None:
    deep = "[" * 40 + "]" * 40
    assert [problem.code for problem in faults(f"a: &a {deep}\nb: {'[' * 40}*a{']' * 40}")] == ["too-deep"]


def test_a_hundred_faults_are_enough() -> None:
    assert len(faults("a: 1\n" * 1000)) == PROBLEMS_MAX


def test_the_tree_beside_faults_holds_what_could_be_understood() -> None:
    tree, report = read_tree(b"a: 1\na: 2\nb: {seed:1..9}\nc: *x\n<<: d\n", file="job.yaml")
    assert len(report.errors) == 4
    assert plain_data(tree) == {"a": "1", "b": {"seed": "1..9"}, "c": "*x"}


def test_without_libyaml_the_parser_in_python_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read(SWEEP) == read(SWEEP.replace("[sim-{seed}.dat]", '["sim-{seed}.dat"]'))
    assert codes("a:\n\tb: 1") == [("tab", 2, 1)]
    assert codes("a: [x") == [("syntax", 1, 4)]


def test_json_is_read_without_importing_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read('{"a": [1]}') == {"a": ["1"]}


@pytest.mark.parametrize(
    "text, why",
    [
        ("no", "reads `no` as false"),
        ("Yes", "reads `Yes` as true"),
        ("ON", "reads `ON` as true"),
        ("n", "reads `n` as false"),
        ("", "absent value as null"),
        ("~", "as null"),
        ("null", "as null"),
        ("010", "leading zero"),
        ("-01", "leading zero"),
        ("08", "leading zero"),
        ("0o17", "another base"),
        ("0x1F", "another base"),
        ("0b1", "another base"),
        ("1_000", "the number 1000"),
    ],
)
def test_an_ambiguous_plain_scalar_is_explained(text: str, why: str) -> None:
    assert why in ambiguity(Scalar(text, plain=True))


@pytest.mark.parametrize("text", ["no", "", "010", "~", "1_000"])
def test_a_quoted_scalar_is_never_ambiguous(text: str) -> None:
    assert ambiguity(Scalar(text, plain=False)) == ""


@pytest.mark.parametrize("text", ["1:30:00", "001..100", "1.10", "0", "0.5", "true", "north", "x_1", "1..9", "-", "-x"])
def test_a_clear_plain_scalar_is_not_reported(text: str) -> None:
    assert ambiguity(Scalar(text, plain=True)) == ""


def test_a_byte_order_mark_does_not_keep_json_from_being_read() -> None:
    tree, report = read_tree('\ufeff{"a": "\\ud83d\\ude00"}'.encode(), file="j.json")
    assert report.errors == []
    assert plain_data(tree) == {"a": "\U0001f600"}
