from __future__ import annotations

import pytest

from pilotage.language import MemoryFolder, load
from pilotage.model.errors import Problem
from tests.kit.jobs import HEAD, loaded, refused

MANY = """\
pilotage: 1
job: many faults
priority: high
variables: {tag: x}
software:
  - {id: reco, run: 'reco {inputs}', enviroment: {A: b}}
stages:
  - name: one
    each: {dot: {a: [1, 2, 3], b: [1, 2]}}
    run: one {a} {b}
    outputs: ['one-{a}']
  - name: two
    run: two {sede}
    outputs: [two.dat]
  - name: three
    run: three
    outputs: [../three.dat]
    memory: 2 bananas
  - name: four
    run: four
    outputs: [same.dat]
  - name: five
    run: five
    outputs: [same.dat]
    role: fnal
  - name: six
    run: [six, 'a }']
  - name: seven
    run: seven
    shell: echo seven
  - name: eight
    each: {seed: 9..1}
    run: eight {seed}
  - name: nine
    run: nine
    failure_patterns: ['(']
  - name: ten
    run: ten
    outputs: ['/ten']
  - name: eleven
    each: {csv: table.csv}
    run: eleven {column}
  - name: twelve
    run: "twelve 'open"
"""


def test_a_dozen_faults_of_every_kind_are_told_at_once_with_their_places() -> None:
    found = {(fault.code, fault.line, fault.column) for fault in refused("", head=MANY)}
    assert found == {
        ("bad-name", 2, 6),
        ("wrong-type", 3, 11),
        ("bad-name", 4, 18),
        ("unknown-field", 6, 38),
        ("unequal-lengths", 9, 11),
        ("unknown-placeholder", 13, 14),
        ("outside-tree", 17, 15),
        ("wrong-type", 18, 13),
        ("two-makers", 24, 15),
        ("unknown-choice", 25, 11),
        ("bad-template", 27, 16),
        ("two-commands", 30, 12),
        ("bad-iteration", 32, 18),
        ("bad-expression", 36, 24),
        ("outside-tree", 39, 15),
        ("missing-file", 41, 11),
        ("bad-command", 44, 10),
    }


def test_faults_of_texts_lists_and_files_are_told_together() -> None:
    text = (
        "stages:\n  - run: a {nope}\n    outputs: [made-by-a]\n  - run: b\n    inputs: [missing]\n    outputs: [../out]\n"
        "  - each: {dot: {x: [1, 2], z: [1]}}\n    run: c {x} {z}\n    outputs: ['c-{x}']\n"
        "  - run: d\n    inputs: [made-by-a, 'c-*', ../out]\n  - run: e\n    outputs: [twice]\n  - run: f\n    outputs: [twice]\n"
        "  - run: g\n    inputs: ['none-*']\n"
    )
    assert sorted(fault.code for fault in refused(text)) == [
        "missing-input", "no-match", "outside-tree", "two-makers", "unequal-lengths", "unknown-placeholder",
    ]  # fmt: skip


def test_a_fault_is_not_told_again_as_what_follows_from_it() -> None:
    text = "stages:\n  - run: a\n    otputs: [x]\n  - run: b\n    inputs: [x]\n"
    assert [fault.code for fault in refused(text)] == ["unknown-field"]
    text = "stages:\n  - eech: {seed: 1..3}\n    run: a {seed}\n"
    assert [fault.code for fault in refused(text)] == ["unknown-field"]
    text = "variabels: {n: '1'}\nstages:\n  - run: a {n}\n"
    assert [fault.code for fault in refused(text)] == ["unknown-field"]
    text = "software: [{id: s, run: x, bogus: 1}]\nstages:\n  - software: s\n"
    assert [fault.code for fault in refused(text)] == ["unknown-field"]
    text = "stages:\n  - each: {seed: 9..1}\n    run: a {seed}\n    outputs: ['o-{seed}']\n  - run: b\n    inputs: ['o-*']\n"
    assert [fault.code for fault in refused(text)] == ["bad-iteration"]


def test_faults_behind_an_unreadable_element_keep_their_places() -> None:
    text = "stages:\n  - 3\n  - run: a\n    shell: b\n  - run: c\n    memory: x\n"
    assert [(fault.code, fault.line) for fault in refused(text)] == [("wrong-type", 4), ("wrong-type", 8)]


def test_a_duplicate_key_does_not_hide_other_faults() -> None:
    faults = refused("stages:\n  - run: a\n    run: b\n    cores: none\n")
    assert [(fault.code, fault.line) for fault in faults] == [("duplicate-key", 5), ("wrong-type", 6)]


def test_a_fault_shows_its_line() -> None:
    (fault,) = refused("stages:\n  - run: x\n    cores: many\n")
    assert (fault.file, fault.source) == ("job.yaml", "    cores: many")


@pytest.mark.parametrize(
    "data, code",
    [
        (b"", None),
        (b"\n# nothing\n", None),
        (b"job: j\n", "missing-head"),
        (b"pilotage: 2\njob: j\n", "unknown-version"),
        (b"pilotage: one\njob: j\n", "unknown-version"),
        (b"pilotage: [1]\njob: j\n", "unknown-version"),
        (b"[1, 2]\n", "wrong-type"),
        (b"just text\n", "wrong-type"),
        (b"pilotage: 1\n", "missing-field"),
        (b"pilotage: 1\njob: no\nrun: x\n", "ambiguous-scalar"),
        (b"pilotage: 1\njob: j\nsoftware: [{id: s, version: no, run: x}]\nrun: x\n", "ambiguous-scalar"),
        (b"pilotage: 1\njob: j\nrun: x\ngpus: 010\n", "wrong-type"),
        (b"pilotage: 1\njob: j\nrun: \xff\n", None),
        (b"pilotage: 1\njob: j\n\trun: x\n", None),
        (b"\xff\xfe", None),
        (b"pilotage: 1\njob: &a [*a]\n", None),
        (b"{" * 1000, None),
        (b"[" * 100_000, None),
        (b"pilotage: 1\njob: j\nrun: " + b"[" * 70 + b"]" * 70 + b"\n", "too-deep"),
        (b'{"pilotage": 1, "job": "j", "run": "x"', None),
        (b'{"pilotage": 1, "job": "j", "job": "k", "run": "x"}', "duplicate-key"),
        (b"pilotage: 1\njob: j\nrun: x\n...\n---\n", None),
        (b"pilotage: 1\njob: j\nrun: !!python/object:os.system x\n", None),
        (bytes(range(256)), None),
    ],
)
def test_hostile_text_gets_a_clear_answer(data: bytes, code: str | None) -> None:
    result = load(data, file="job.yaml", folder=MemoryFolder(), source_format="yaml")
    assert result.expansion is None
    assert result.report.errors
    assert code is None or result.report.errors[0].code == code
    assert all(fault.message and fault.code and fault.file == "job.yaml" for fault in result.report.errors)


def test_json_is_yaml() -> None:
    data = (
        b'{"pilotage": 1, "job": "j", "stages": [{"each": {"i": "1..3"}, "run": ["x", "{i}"], "outputs": ["o-{i}"]}]}'
    )
    result = load(data, file="job.json", folder=MemoryFolder())
    assert result.format == "yaml"
    assert result.expansion is not None
    assert result.expansion.count == 3


def codes(faults: list[Problem]) -> set[str]:
    return {fault.code for fault in faults}


@pytest.mark.parametrize(
    "stage, code",
    [
        ("{each: {i: 1..100000000}, run: 'x {i}'}", "bad-iteration"),
        ("{each: {a: 1..100000, b: 1..100000}, run: 'x {a} {b}'}", "too-many-items"),
        ("{each: {a: 1..20000}, lines: [{each: {b: 1..20000}, run: 'x {a} {b}'}]}", "too-many-packages"),
        ("{each: {a: 1..20000000}, packages: [{run: 'x {a}'}, {run: 'y'}]}", "too-many-packages"),
        ('{each: {v: ["a\\0b"]}, run: "x {v}"}', "nul-character"),
        ('{run: "x\\0"}', "nul-character"),
        ('{run: x, outputs: ["a\\0"]}', "nul-character"),
        ('{run: x, environment: {A: "\\0"}}', "nul-character"),
        ("{run: x, outputs: ['{__class__}']}", "unknown-placeholder"),
        ("{run: 'x {0}'}", "bad-template"),
        ("{run: x, cores: 99999999999999999999999999999999e999}", "out-of-range"),
        ("{run: x, memory: 99999999999999999999999999}", "wrong-type"),
        ("{run: x, priority: 99999999999999999999999999}", "wrong-type"),
    ],
)
def test_what_would_take_too_much_is_refused_before_it_is_made(stage: str, code: str) -> None:
    assert codes(refused(f"stages:\n  - {stage}\n")) == {code}


def test_two_thousand_faults_are_all_told() -> None:
    text = "stages:\n" + "".join(f"  - {{run: x, bogus{i}: 1}}\n" for i in range(2000))
    assert len(refused(text)) == 2000


def test_thousands_of_stages_with_patterns_are_read() -> None:
    stages = "".join(
        f"  - {{name: s{i}, run: 'x {{inputs}}', inputs: ['f{i - 1}-*'], outputs: ['f{i}-x']}}\n"
        for i in range(1, 1500)
    )
    result = loaded("stages:\n  - {name: s0, run: x, outputs: [f0-x]}\n" + stages)
    assert result.expansion is not None
    assert result.expansion.graph.edge_count == 1499


def test_the_head_is_asked_for_by_an_example() -> None:
    result = load(b"job: j\nrun: x\n", file="j.yaml", folder=MemoryFolder())
    assert "pilotage: 1" in result.report.errors[0].hint


def test_the_common_head_is_valid() -> None:
    assert loaded("run: x\n", head=HEAD).report.errors == []


def test_an_unknown_field_does_not_hide_other_faults_of_its_record() -> None:
    faults = refused("stages:\n  - run: a\n    memmory: 2\n    outputs: [../x]\n")
    assert sorted((fault.code, fault.line) for fault in faults) == [("outside-tree", 6), ("unknown-field", 5)]


def test_a_cycle_is_told_beside_other_faults_and_every_cycle_is() -> None:
    text = "stages:\n  - {run: a, outputs: [../x]}\n"
    for first, second in (("d", "e"), ("f", "g")):
        text += f"  - {{run: {first}, inputs: [{second}], outputs: [{first}]}}\n"
        text += f"  - {{run: {second}, inputs: [{first}], outputs: [{second}]}}\n"
    assert sorted(fault.code for fault in refused(text)) == ["cycle", "cycle", "outside-tree"]


ONE_ROUND = """pilotage: 1
job: j
stages:
  - each: {i: 1..3}
    run: one {i}
    outputs: [same.dat]
    memory: lots
  - run: two
    inputs: [nothing-*.txt]
    outputs: [two.dat]
    retry: {rules: [{reason: oom, action: more-memory}]}
  - run: three
    inputs: [absent.txt]
    outputs: [two.dat]
    timeout: often
"""


def test_types_reasons_patterns_and_two_makers_are_told_in_one_round() -> None:
    found = {(fault.code, fault.line) for fault in refused("", head=ONE_ROUND)}
    assert found == {
        ("two-makers", 6),
        ("wrong-type", 7),
        ("no-match", 9),
        ("unknown-choice", 11),
        ("missing-input", 13),
        ("two-makers", 14),
        ("unknown-field", 15),
    }


def test_what_follows_from_an_unreadable_field_is_not_told() -> None:
    text = "stages:\n  - run: a\n    outptus: [made.txt]\n  - run: b\n    inputs: [made.txt]\n"
    assert [fault.code for fault in refused(text)] == ["unknown-field"]
    text = "stages:\n  - run: a\n    outputs: [[made.txt]]\n  - run: b\n    inputs: [made.txt]\n"
    assert [fault.code for fault in refused(text)] == ["wrong-type"]
    text = (
        "stages:\n  - run: a\n    failure_patterns: [{pattern: '(', reason: flaky}]\n"
        "    retry: {rules: [{reason: flaky, action: more-memory}]}\n"
    )
    assert [fault.code for fault in refused(text)] == ["bad-expression"]
