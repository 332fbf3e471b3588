"""Values in shell scripts come out as themselves, wherever they stand."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.text.templates import parse_template, render_shell
from tests.kit.jobs import refused

NASTY = [
    "a b",
    "$(echo INJECTED)",
    "'; echo INJECTED; '",
    '"; echo INJECTED; "',
    "`echo INJECTED`",
    "\\",
    "$HOME",
    "a\\b",
    "*",
    "-n",
    "'",
    '"',
    "#",
    "a\nb",
]
SCRIPTS = [
    "printf '%s|' {x}",
    "printf '%s|' \"{x}\"",
    "printf '%s|' '{x}'",
    "printf '%s|' \"$(printf '%s' {x})\"",
    "printf '%s|' \"$(printf '%s' \"{x}\")\"",
    "# don't mind\nprintf '%s|' \"{x}\"",
    "echo \"it's\" >/dev/null; printf '%s|' '{x}'",
    "cat >/dev/null <<END\ndon't \"mind\nEND\nprintf '%s|' \"{x}\"",
    "cat >/dev/null <<'END'\ndon't \"mind\nEND\nprintf '%s|' {x}",
    "printf '%s|' a\\'\"{x}\" >/dev/null; printf '%s|' {x}",
    "(printf '%s|' \"{x}\")",
    "case x in x) printf '%s|' \"{x}\";; esac",
]


def run(script: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("value", NASTY)
def test_a_value_comes_out_as_itself(script: str, value: str) -> None:
    assert run(render_shell(script, {"x": value})).rstrip("|") == value.rstrip("\n")


@pytest.mark.parametrize("value", ["a b", "$HOME", "`date`", "it's", '"', "\\"])
def test_a_value_in_a_here_document_comes_out_as_itself(value: str) -> None:
    assert run(render_shell("cat <<END\n{x}\nEND\n", {"x": value})) == f"{value}\n"
    assert run(render_shell("cat <<'END'\n{x}\nEND\n", {"x": value})) == f"{value}\n"


def test_a_list_between_words_is_as_many_words() -> None:
    script = render_shell("printf '%s|' {inputs}", {"inputs": ("a b", "c'd")})
    assert run(script) == "a b|c'd|"


def test_a_list_in_quotes_is_one_word() -> None:
    script = render_shell("printf '%s|' \"{inputs}\"", {"inputs": ("a b", "$c")})
    assert run(script) == "a b $c|"


def test_a_value_between_backticks_is_refused() -> None:
    assert "write $( … ) instead" in parse_template("echo `cat {x}`", "shell").fault


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_any_value_is_one_word_in_any_quotes(value: str) -> None:
    script = render_shell("printf '%s\\001%s\\001%s\\001' {x} \"{x}\" '{x}'", {"x": value})
    done = subprocess.run(["/bin/sh", "-c", script.encode()], capture_output=True, check=True)
    assert done.stdout.split(b"\1")[:3] == [value.encode()] * 3 or "\1" in value


def test_a_document_whose_value_cannot_stand_in_its_script_is_refused_by_name() -> None:
    (fault,) = refused("stages:\n  - each: {n: [1, 2, 'a[0]', x]}\n    shell: echo $(({n} + 1))\n")
    assert (fault.code, fault.line) == ("unfit-value", 5)
    assert "{n} cannot be filled in" in fault.message
    assert "'a[0]'" in fault.message
    assert "(and 1 more)" in fault.message
    (fault,) = refused("variables: {v: 'END'}\nstages:\n  - shell: \"cat <<END\\n{v}\\nEND\\n\"\n")
    assert "would end the here-document" in fault.message


def test_a_list_in_arithmetic_is_refused() -> None:
    (fault,) = refused("stages:\n  - shell: echo $(({arguments}))\n    arguments: [1]\n")
    assert fault.code == "list-in-text"


@pytest.mark.parametrize("before", ["", "2>/dev/null ", "2> /dev/null ", "> /dev/null "])
def test_a_placeholder_where_no_value_can_be_quoted_is_refused_with_a_way_out(before: str) -> None:
    (fault,) = refused(f"stages:\n  - each: {{x: [a]}}\n    shell: '{before}eval \"echo {{x}}\"'\n")
    assert fault.code == "bad-template"
    assert 'write value={x} on a line of its own, and then "$value"' in fault.message


def test_a_value_that_shows_itself_too_late_gives_a_script_that_says_so_and_fails() -> None:
    script = render_shell("echo $(({x}))", {"x": "a[$(echo INJECTED)]"})
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("{x} cannot be filled in: only an integer")
