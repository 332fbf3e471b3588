"""Whatever a value holds and wherever it stands in a script, dash and bash give it back or the document is refused."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.language.text.templates import parse_template, render_shell, unfit_value

SHELLS = ("dash", "bash")
CODE = [
    "$(: >canary)",
    "`: >canary`",
    ";: >canary;",
    "\n: >canary\n",
    "'; : >canary; '",
    '"; : >canary; "',
    "\nEND\n: >canary\n",
    "END\n: >canary #",
    "\n\tEND\n: >canary\n",
    "a[$(: >canary)]",
    "1))$(: >canary)",
    "1+a[$(: >canary)]",
    "\\';: >canary;#",
    "}; : >canary; {",
    ") ; : >canary; (",
    "\\",
    "\\\n",
    "$",
    "'",
    '"',
    "`",
    "END",
    "\t",
    "a b",
    "*",
    "é",
    "-n",
    "2",
]
# Each script writes the value, and a \1 behind it, once.
ARRIVES = [
    "printf '%s\\1' {x}",
    "printf '%s\\1' \"{x}\"",
    "printf '%s\\1' '{x}'",
    "printf '%s\\1' \"$(printf '%s\\1' {x})\"",
    "printf '%s\\1' \"$(printf '%s\\1' \"{x}\")\"",
    "printf '%s\\1' \"$(case a in a) printf '%s\\1' {x};; esac)\"",
    "printf '%s\\1' \"$(case a in (a) printf '%s\\1' {x}; esac)\"",
    "printf '%s\\1' $(: case) {x}",
    "y={x}; printf '%s\\1' \"$y\"",
    "export y={x}; printf '%s\\1' \"$y\"",
    "# don't {x}\nprintf '%s\\1' {x}",
    "printf '%s' {x}>&1; printf '\\1'",
    "cat <<END\n{x}\1\nEND\n",
    "cat <<'END'\n{x}\1\nEND\n",
    "cat <<\\END\n{x}\1\nEND\n",
    "cat <<-END\n\ta{x}\1\n\tEND\n",
    "cat <<END-1; printf '%s\\1' b\na{x}\1\nEND-1\n",
    "cat <<END\nEN\\\n{x}\1\nEND\n",
    "printf '%s\\1' a$((1 << 2)){x}",
    "printf '%s\\1' \\\n{x}",
    "f() {{ printf '%s\\1' \"$1\"; }}; f {x}",
    "for i in {x}; do printf '%s\\1' \"$i\"; done",
    "[ {x} = {x} ] && printf '%s\\1' {x}",
    "printf '%s\\1' \"$(cat <<END\n{x}\1\nEND\n)\"",
    "printf '%s\\1' \"\\\\{x}\"",
]
BEFORE = {
    "cat <<-END\n\ta{x}\1\n\tEND\n": "a",
    "cat <<END-1; printf '%s\\1' b\na{x}\1\nEND-1\n": "a",
    "cat <<END\nEN\\\n{x}\1\nEND\n": "EN",
    "printf '%s\\1' a$((1 << 2)){x}": "a4",
    "printf '%s\\1' \"\\\\{x}\"": "\\",
    "printf '%s\\1' $(: case) {x}": "",
}
REFUSED = [
    "echo `echo {x}`",
    'echo "\\{x}"',
    "echo \\{x}",
    "cat <<END\n\\{x}\nEND\n",
    "cat <<END\n$(echo {x})\nEND\n",
    "cat <<{x}\nEND\n",
    "echo $'{x}'",
    "echo $'a\\'b' {x}",
    "echo ${y:-{x}}",
    'echo "${y:-{x}}"',
    "eval echo {x}",
    "eval 'echo {x}'",
    "\\eval {x}",
    'trap "echo {x}" EXIT',
    "[[ {x} -eq 1 ]]",
    "[[ 1 -lt 2 && 3 -eq {x} ]]",
    "a[{x}]=1",
    "read {x}",
    "declare -i n={x}",
    "unset {x}",
    "test -v {x}",
    "let n={x}",
    "echo $[{x}]",
    "echo hi >&{x}",
    "echo $((1{x}))",
    "$((echo {x}) | cat)",
]
NUMBERS = ["echo $(({x}))", 'echo "$((1 + {x} - 1))"', "cat <<END\n$(({x}))\nEND\n", "echo $(( $(echo {x}) ))"]


def run(shell: str, script: str, folder: str) -> bytes:
    done = subprocess.run(
        [shell, "-c", script.encode()],
        cwd=folder,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert not Path(folder, "canary").exists(), f"{shell} ran code of a value: {script!r}"
    return done.stdout


values = st.lists(
    st.one_of(st.sampled_from(CODE), st.text(st.sampled_from("ab \n\t\\'\"$`END;"), max_size=4)), max_size=4
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(ARRIVES), values.map("".join))
def test_a_value_arrives_as_it_is_or_is_refused_by_name(script: str, value: str) -> None:
    assert parse_template(script, "shell").fault == ""
    reason = unfit_value(script, {"x": value})
    if reason:
        assert "<<" in script
        assert reason.startswith("{x} cannot be filled in: it ")
    with tempfile.TemporaryDirectory() as folder:
        for shell in SHELLS:
            told = run(shell, render_shell(script, {"x": value}), folder)
            if not reason:
                assert told.partition(b"\1")[0].decode() == BEFORE.get(script, "") + value


@pytest.mark.parametrize("script", ARRIVES)
def test_a_plain_value_arrives_in_both_shells(script: str, tmp_path: Path) -> None:
    for shell in SHELLS:
        told = run(shell, render_shell(script, {"x": "a'$b\"\\c"}), str(tmp_path))
        assert told.partition(b"\1")[0].decode() == BEFORE.get(script, "") + "a'$b\"\\c"


@pytest.mark.parametrize("script", REFUSED)
def test_a_place_where_no_value_can_be_quoted_is_refused_by_name(script: str) -> None:
    assert parse_template(script, "shell").fault.startswith("{x} ")


@pytest.mark.parametrize("script", NUMBERS)
@pytest.mark.parametrize(
    "value, number", [("5", 5), ("-5", -5), ("+7", 7), ("007", 7), ("0x1f", 31), ("9223372036854775807", 2**63 - 1)]
)
def test_a_whole_number_arrives_in_arithmetic(script: str, value: str, number: int, tmp_path: Path) -> None:
    for shell in SHELLS:
        assert int(run(shell, render_shell(script, {"x": value}), str(tmp_path))) == number


@pytest.mark.parametrize("script", NUMBERS[:3])
@pytest.mark.parametrize(
    "value", ["", "a", "a[$(: >canary)]", "1;", "1.5", "1 2", "9223372036854775808", "$(: >canary)", "1\n"]
)
def test_only_a_whole_number_can_stand_in_arithmetic(script: str, value: str, tmp_path: Path) -> None:
    assert unfit_value(script, {"x": value})
    for shell in SHELLS:
        assert run(shell, render_shell(script, {"x": value}), str(tmp_path)) == b""


PIECES = [
    "{x}", "{x}", "{x}", "{x}", '"', "'", "`", "\\", "$(", "((", "$((", "))", ")", "(", "${y:-", "}", "$'", "\n", " ", ";",
    "|", "<<END\n", "<<'END'\n", "<<-END\n", "\nEND\n", "END", "cat ", "# ", "case a in a) ", ";; esac", "a", "1", "[[ ",
    " ]]", " -eq ", "a[", "]=", "$[", "y=", "<<<", "<", ">&2", "do ", "for i in ", "; do ", "; done", "if :; then ", "; fi",
    "eval ", "trap ", "read ", "declare -i ", "echo ", "\t", "\\\n", "$", "f() ", '"$(', ')"', "=(",
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=10), values.map("".join))
def test_no_script_of_any_shape_runs_code_of_a_value(pieces: list[str], value: str) -> None:
    script = "".join(pieces)
    template = parse_template(script, "shell")
    if template.fault or not template.placeholders:
        return
    with tempfile.TemporaryDirectory() as folder:
        for shell in SHELLS:
            run(shell, render_shell(script, {"x": value}), folder)
