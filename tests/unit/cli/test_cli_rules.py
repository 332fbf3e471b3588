from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.app.documents.retry_rules import default_rules, rules_table
from pilotage.engine.retry.policy import RULES
from pilotage.model.exchange.exchange import Assignment, Exchange, ExchangeReply
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import Reason
from tests.docs.test_reference import generator
from tests.kit.command_line import in_an_empty_folder, refused, run

DOCUMENT = """\
pilotage: 1
job: small
stages:
  - name: simulate
    each: {seed: 1..3}
    run: ./simulate {seed} --out sim-{seed}.dat
    outputs: ["sim-{seed}.dat"]
    memory: 2 GiB
    failure_patterns: [{pattern: licence, reason: licence}]
    retry:
      attempts_max: 4
      rules:
        - {reason: licence, action: later}
        - {exit_code: 3, action: give-up}
        - {pattern: quota, action: hold-job}
  - name: merge
    run: ./merge {inputs} --out all.dat
    inputs: ["sim-*.dat"]
    outputs: [all.dat]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT)


def printed(*arguments: str) -> str:
    result = run("rules", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def answers(*arguments: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(printed("pilotage.yaml", *arguments, "--json"))
    return told


# --- the default table ---------------------------------------------------------------------------------------------


def test_every_reason_is_in_the_table_once() -> None:
    heads = [line for line in printed().splitlines() if not line.startswith(" ")]
    assert sorted(", ".join(heads).split(", ")) == sorted(msgspec.inspect.type_info(Reason).values)  # type: ignore[attr-defined]


def test_the_table_says_what_is_done_whether_it_counts_the_bound_and_why() -> None:
    table = printed()
    memory = table[table.index("out-of-memory") :].split("\n")
    row, settings = RULES["out-of-memory"], RestartSettings()
    assert memory[1].strip() == f"restarted with more memory: {row.changes}"
    assert memory[2].strip().startswith(f"counted; doubled at most {settings.memory_doublings_max} times")
    assert memory[3].strip() == f"why: {row.why}"


@pytest.mark.parametrize("reason", RULES)
def test_the_table_as_json_agrees_with_the_rules_of_the_engine(reason: Reason) -> None:
    found = {each["reason"]: each for each in json.loads(printed("--json"))}
    row, told = RULES[reason], found[reason]
    assert (told["action"], told["counted"], told["why"]) == (row.answer, row.counted, row.why)
    assert told["bound"] == getattr(RestartSettings(), row.budget or "attempts_max")
    assert str(told["bound"]) in told["bounded"]


def test_a_line_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, printed().splitlines())) <= 90  # heads are lists of reasons and stay whole
    assert max(len(line) for line in printed().splitlines() if line.startswith(" ")) <= 60


# --- dry runs ------------------------------------------------------------------------------------------------------


def test_without_a_document_the_defaults_answer() -> None:
    told = printed("--reason", "platform-failure", "--times", "3").splitlines()
    assert told[0] == "a package without rules of its own: at most 5 counted attempts"
    assert told[1].strip() == "not counted; given up at 20 failures of its kind"
    assert [line.partition(":")[0].strip() for line in told[2:5]] == ["attempt 1", "attempt 2", "attempt 3"]
    assert all("again elsewhere" in line for line in told[2:5])


def test_what_fails_at_the_only_site_is_told_with_its_bound_and_its_pauses() -> None:
    table, settings = printed(), RestartSettings()
    assert "where there is no other, it waits 10 s, then 2 times as long" in " ".join(table.split())
    told = " ".join(printed("--reason", "disk-full").split())
    assert told.endswith(
        "with a single site: 20 attempts, with 10 h 25 min of pauses between them; "
        "then given up: retries-exhausted (--sites 1)"
    )
    [only] = json.loads(printed("--reason", "disk-full", "--sites", "1", "--times", "30", "--json"))
    delays = [each["delay_seconds"] for each in only["answers"]]
    assert (len(delays), delays[:4], max(delays)) == (20, [0.0, 10.0, 20.0, 40.0], settings.delay_seconds_max)
    assert only["answers"][-1]["action"] == "give-up"
    assert only["alone"] is None  # that is what was asked


def test_sites_that_fail_in_turn_are_gone_through_before_there_is_a_pause() -> None:
    [only] = json.loads(printed("--reason", "platform-failure", "--sites", "3", "--times", "5", "--json"))
    assert [each["delay_seconds"] for each in only["answers"]] == [0.0, 0.0, 0.0, 10.0, 0.0]


def test_what_a_rule_of_the_package_answers_has_no_bound_of_the_table() -> None:
    [simulate, _] = answers("--reason", "licence")
    assert (simulate["bounded"], simulate["alone"]) == ("", None)


def test_the_default_for_memory_ends_after_two_doublings_of_what_is_declared() -> None:
    (only,) = answers("--reason", "out-of-memory", "--package", "small/001/002/001")
    assert [each["memory_bytes"] // 2**30 for each in only["answers"]] == [4, 8, 8]
    assert [each["action"] for each in only["answers"]] == ["restart", "restart", "give-up"]


def test_each_kind_of_package_is_answered_by_its_own_rules() -> None:
    simulate, merge = answers("--reason", "licence")
    assert (simulate["activities"], simulate["attempts_max"]) == (["simulate"], 4)
    assert [each["delay_seconds"] for each in simulate["answers"]] == [10.0, 20.0, 40.0, 0.0]
    assert {each["rule"] for each in simulate["answers"]} == {"retry.rules[0]", "attempts-max"}
    assert (merge["activities"], merge["attempts_max"]) == (["merge"], 5)
    assert merge["answers"][-1]["cause"] == "permanent-failure"


@pytest.mark.parametrize("name", ["2.1.1", "small/002/001/001", "merge"])
def test_one_package_can_be_named_by_place_path_or_name(name: str) -> None:
    (only,) = answers("--reason", "signal", "--package", name)
    assert only["activities"] == ["merge"]


def test_packages_that_are_alike_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text("pilotage: 1\njob: x\nstages: [{name: a, run: a}, {name: b, run: b}]\n")
    (only,) = answers("--reason", "signal")
    assert only["activities"] == ["a", "b"]


def test_rules_for_exit_codes_and_for_the_log_are_tried_too() -> None:
    (only,) = answers("--exit-code", "3", "--package", "1.1.1")
    assert [each["rule"] for each in only["answers"]] == ["retry.rules[1]"]
    told = printed("pilotage.yaml", "--message", "over quota", "--package", "1.1.1", "--times", "1")
    assert told.splitlines()[-1].strip() == "the job is held until it is released"


def test_what_is_given_up_says_as_what() -> None:
    told = printed("pilotage.yaml", "--exit-code", "3", "--package", "1.1.1").splitlines()
    assert told[-1] == "    given up: permanent-failure"


def test_a_stage_that_grows_later_is_named(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(
        "pilotage: 1\njob: x\nstages:\n  - {name: split, run: a, outputs: ['p-*.dat']}\n"
        "  - {name: each, each: {p: {files: 'p-*.dat', stage: split}}, run: 'b {p}'}\n"
    )
    result = run("rules", "pilotage.yaml", "--reason", "signal")
    assert result.stderr.endswith("stage 2 (each) is late: its packages are not known yet\n")


# --- mistakes ------------------------------------------------------------------------------------------------------


def test_a_reason_nobody_knows_is_refused_with_the_nearest() -> None:
    assert "did you mean 'out-of-memory'?" in refused("rules", "--reason", "out-of-memmory")
    assert "did you mean 'licence'?" in refused("rules", "pilotage.yaml", "--reason", "license")
    assert "no such failure reason" in refused("rules", "pilotage.yaml", "--reason", "licence", "--package", "2.1.1")


@pytest.mark.parametrize("name", ["1.4.1", "3.1.1", "other/001/001/001", "x", "1.1"])
def test_a_package_that_is_not_there_is_refused(name: str) -> None:
    told = refused("rules", "pilotage.yaml", "--reason", "signal", "--package", name)
    assert "the job small has no such package" in told
    assert name in told


def test_a_document_needs_a_failure_and_a_package_a_document() -> None:
    assert "Which failure?" in refused("rules", "pilotage.yaml")
    assert "name FILE" in refused("rules", "--reason", "signal", "--package", "1.1.1")


def test_a_document_with_faults_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text("pilotage: 1\njob: x\nruns: a\n")
    assert "unknown-field" in refused("rules", "pilotage.yaml", "--reason", "signal")


# --- the documentation ---------------------------------------------------------------------------------------------


def test_the_table_of_the_engine_page_is_up_to_date(root: Path) -> None:
    page = (root / "docs/explanation/engine.md").read_text("utf-8")
    assert rules_table() in page, "run make docs"
    assert generator(root).with_tables(page) == page, "run make docs"


def test_the_table_of_the_documentation_has_each_reason_once() -> None:
    cells = "".join(line.split("|")[1] for line in rules_table().splitlines()[2:])
    assert sorted(re.findall(r"`([a-z-]+)`", cells)) == sorted(RULES) == sorted(each.reason for each in default_rules())


def test_every_promise_of_the_checkers_is_told_to_whoever_reads_a_violation(root: Path) -> None:
    row = re.compile(r"^\| `([a-z]+)` \|", re.MULTILINE)
    raised = re.compile(r'(?:Violation\(|checker=)"([a-z]+)"')
    folder = root / "src/pilotage/simulator"
    known = {name for file in folder.rglob("*.py") for name in raised.findall(file.read_text("utf-8"))}
    known.update(row.findall((folder / "checkers" / "observer.py").read_text("utf-8")))
    page = (root / "docs/howto/simulate.md").read_text("utf-8")
    assert known == set(row.findall(page[page.index("### Read a violation") :]))


@pytest.mark.parametrize("message", [Exchange, ExchangeReply, Assignment])
def test_the_fields_of_an_exchange_are_explained_in_order(root: Path, message: type[msgspec.Struct]) -> None:
    page = (root / "docs/reference/exchange.md").read_text("utf-8")
    section = page[page.index(f"`{message.__name__}`") :]
    explained = re.findall(r"^\| `([a-z_]+)` \|", section.split("\n## ")[0], re.MULTILINE)
    assert explained == list(message.__struct_fields__)
