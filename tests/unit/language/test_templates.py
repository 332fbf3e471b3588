from __future__ import annotations

import pytest

from pilotage.language.text.templates import (
    Placeholder,
    Values,
    parse_template,
    part_of_name,
    render,
    render_arguments,
    render_column,
    render_shell,
)


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ()),
        ("plain", ("plain",)),
        ("a-{b}.c", ("a-", Placeholder("b"), ".c")),
        ("{a}{b}", (Placeholder("a"), Placeholder("b"))),
        ("{{a}}", ("{a}",)),
        ("{{{a}}}", ("{", Placeholder("a"), "}")),
        ("{a.stem}", (Placeholder("a", "stem"),)),
        ("{{", ("{",)),
        ("}}", ("}",)),
    ],
)
def test_braces_are_gaps_and_double_braces_are_braces(text: str, parts: tuple[object, ...]) -> None:
    template = parse_template(text)
    assert template.parts == parts
    assert template.fault == ""


@pytest.mark.parametrize(
    "text", ["{", "}", "a{b", "a}b", "{}", "{0}", "{a b}", "{a!r}", "{a:>3}", "{a[0]}", "{a.b.c}", "{ a}", "{a", "{{a}"]
)
def test_a_stray_brace_is_a_fault(text: str) -> None:
    assert "stray" in parse_template(text).fault


@pytest.mark.parametrize(
    "text, written",
    [
        ("cat {f} > x", "cat 'a b' > x"),
        ("f() { echo; }", "f() { echo; }"),
        ("echo ${HOME} ${f}", "echo ${HOME} ${f}"),
        ("awk '{print $1}'", "awk '{print $1}'"),
        ("echo {{f}}", "echo {f}"),
        ("x={a,b}", "x={a,b}"),
        ("p {l}", "p 1 '2 3'"),
    ],
)
def test_in_a_shell_script_only_names_in_braces_are_gaps(text: str, written: str) -> None:
    assert render_shell(text, {"f": "a b", "l": ("1", "2 3")}) == written


@pytest.mark.parametrize("value", ["a b", "$(reboot)", "'; rm -rf /; '", "`x`", "a\nb", '"', "*", "", "-n", "é"])
def test_values_in_a_shell_script_are_quoted(value: str) -> None:
    import shlex

    assert shlex.split(render_shell("echo {v}", {"v": value})) == ["echo", value]


@pytest.mark.parametrize(
    "name, parts",
    [
        ("raw/a.tar.gz", ("a.tar.gz", "a.tar", ".gz", "raw")),
        ("a", ("a", "a", "", ".")),
        (".hidden", (".hidden", ".hidden", "", ".")),
        ("x/y/", ("", "", "", "x/y")),
        ("a.", ("a.", "a", ".", ".")),
    ],
)
def test_parts_of_a_file_name(name: str, parts: tuple[str, ...]) -> None:
    assert tuple(part_of_name(name, part) for part in ("name", "stem", "suffix", "parent")) == parts


def test_a_list_that_stands_alone_becomes_arguments() -> None:
    values: Values = {"l": ("a b", "c"), "v": "x y", "none": ()}
    assert render_arguments(("p", "{l}", "{v}", "{l.stem}", "{none}", "-{v}"), values) == (
        "p",
        "a b",
        "c",
        "x y",
        "a b",
        "c",
        "-x y",
    )


def test_a_value_is_never_read_as_a_template_again() -> None:
    assert render(parse_template("{a}"), {"a": "{b} %s {{"}) == "{b} %s {{"


def test_columns_are_written_as_the_single_texts_are() -> None:
    template = parse_template("100%-{a}-%s-{b.stem}")
    columns = {"a": ["1", "%d"], "b": ["x.y", "z"]}
    rows = [{"a": "1", "b": "x.y"}, {"a": "%d", "b": "z"}]
    assert render_column(template, columns, 2) == [render(template, row) for row in rows]
