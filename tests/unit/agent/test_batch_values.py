"""What batch systems print, as values: numbers, times, sizes, and what an answer stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pilotage.agent.allocation import CommandResult, is_over, lost_node, seconds_left
from pilotage.agent.batch.values import (
    Answer,
    BatchJob,
    BatchRequest,
    Busy,
    Refused,
    Unknown,
    answered,
    common_start,
    document,
    documents,
    expression,
    fields,
    keep,
    message_of,
    number,
    rejection,
    seconds,
    size_bytes,
)


@pytest.mark.parametrize(
    "text, value",
    [
        ("03:04", 184), ("02:03:04", 7384), ("1-02:03:04", 93784), ("1-02", 93600), ("1-02:03", 93780), ("59", 59), (" 5 ", 5),
        ("2-0", 172800), ("UNLIMITED", 0), ("", 0), ("1:2:3:4", 0), ("1-", 0), ("-1", 0),
    ],
)  # fmt: skip
def test_a_time_is_told_in_seconds(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    "text, value",
    [
        ("100", 100), ("1k", 1024), ("512mb", 512 << 20), ("16G", 16 << 30), ("2TiB", 2 << 40), ("3.7g", 3 << 30), ("1b", 1),
        (" 4 K ", 4096), ("", 0), ("all", 0), ("1x", 0), ("-1", 0),
    ],
)  # fmt: skip
def test_a_size_is_told_in_bytes(text: str, value: int) -> None:
    assert size_bytes(text) == value


def test_a_number_is_what_a_text_begins_with() -> None:
    assert [number(text) for text in ("12 cores", "  -3x", "x1", "")] == [12, -3, 0, 0]
    assert number("none", 7) == 7


def test_the_names_that_begin_lines_are_fields() -> None:
    assert fields("  name  a value \nother\tx\nalone\n") == {"name": "a value", "other": "x"}


@pytest.mark.parametrize(
    "names, start", [(["a1", "a2"], "a"), (["abc"], "abc"), (["ab", "abc"], "ab"), (["x", "y"], ""), (["a", "a"], "a")]
)
def test_what_all_names_begin_with(names: list[str], start: str) -> None:
    assert common_start(names) == start


def test_a_document_is_an_object_and_documents_are_a_list_of_them() -> None:
    assert document('{"a": "b\tc"}') == {"a": "b\tc"}
    assert documents(' [{"a": 1}, 2, {"b": 3}] ') == [{"a": 1}, {"b": 3}]
    assert documents(" \n") == []
    for text in ("[1]", "{", "", "[" * 100_000):
        with pytest.raises(Unknown):
            document(text)
    for text in ("{}", "[", "1"):
        with pytest.raises(Unknown):
            documents(text)


@pytest.mark.parametrize(
    "names, matching, others",
    [
        (["node1"], ["node1", "node1.site"], ["node12", "node1xsite", "anode1"]),
        (["node1.site"], ["node1.site", "node1"], ["node1.other", "node1xsite"]),
        (["node*"], ["node", "node12", "node1.site"], ["anode"]),
        (["n?"], ["n1", "n1.site"], ["n", "n12"]),
        (["n[12]", "m[!1]"], ["n1", "n2.site", "m2"], ["n3", "m1"]),
    ],
)
def test_names_of_nodes_become_one_expression(names: list[str], matching: list[str], others: list[str]) -> None:
    made = re.compile(f"({expression(names)})")
    assert [each for each in [*matching, *others] if made.fullmatch(each)] == matching


def test_of_two_under_one_key_what_has_not_ended_is_kept() -> None:
    running, ended, again = BatchJob("1", "running"), BatchJob("2", "ended"), BatchJob("3", "ended")
    for told, kept in (
        ([running, ended], running), ([ended, running], running), ([ended, again], again), ([ended], ended),
        ([running, BatchJob("4", "queued")], BatchJob("4", "queued")),
    ):  # fmt: skip
        found: dict[str, BatchJob] = {}
        for each in told:
            keep(found, "k", each)
            keep(found, None, each)
        assert found == {"k": kept}


def test_only_a_call_that_succeeded_has_answered() -> None:
    assert answered(Answer(0, "text")) == "text"
    for status in (1, None, -1):
        with pytest.raises(Unknown):
            answered(Answer(status, "text"))


@pytest.mark.parametrize(
    "answer, message",
    [
        (Answer(1, " out ", "an\n error"), "an error out"), (Answer(3), "exit status 3 without a message"),
        (Answer(None), "no answer in time"), (Answer(None, "", "half"), "no answer in time: half"),
        (Answer(1, "x" * 600), "x" * 500),
    ],
)  # fmt: skip
def test_what_a_call_said_is_one_line(answer: Answer, message: str) -> None:
    assert message_of(answer) == message


@pytest.mark.parametrize(
    "answer, kind, said",
    [
        (Answer(127, "", "bad queue"), Refused, "refused"), (Answer(1, "", "BAD queue"), Refused, "bad-queue"),
        (Answer(1, "", "try later"), Busy, False), (Answer(1, "", "too many"), Busy, True), (Answer(1, "", "odd"), Unknown, None),
        (Answer(0, "", "bad queue"), Unknown, None), (Answer(None, "", "bad queue"), Unknown, None),
        (Answer(1, "", "lost"), Unknown, None), (Answer(1, "", "try later: bad queue"), Refused, "bad-queue"),
    ],
)  # fmt: skip
def test_a_submission_fails_as_its_words_say(answer: Answer, kind: type, said: object) -> None:
    error = rejection(
        answer, [("bad queue", "bad-queue"), ("later", "busy"), ("too many", "fewer"), ("lost", "unknown")]
    )
    assert type(error) is kind
    assert getattr(error, "reason", getattr(error, "fewer", None)) == said
    assert error.retryable is (kind is not Refused)


@pytest.mark.parametrize(
    "said",
    [
        {"command": []}, {"count": 0}, {"cores": 0}, {"nodes": 0}, {"hosts": ["a b"]}, {"hosts": ["fine", ""]}, {"queue": "a\nb"},
        {"account": "a\rb"}, {"directives": ["fine", "a\0b"]}, {"agent": "a\n"},
    ],
)  # fmt: skip
def test_what_some_system_would_read_as_something_else_cannot_be_wanted(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least one|not a node name|one line"):
        BatchRequest(**{"key": "k", "command": ["true"], **said})


def test_one_core_of_one_node_is_wanted_once_unless_more_is_said() -> None:
    wanted = BatchRequest("k", ["true"], hosts=["node-[0-9]*.site", "n?"])
    assert (wanted.count, wanted.cores, wanted.nodes, wanted.gpus) == (1, 1, 1, 0)
    assert (wanted.memory_bytes, wanted.wall_seconds) == (0, 0)


_JOB = {"SLURM_JOB_ID": "12"}
_WIDE = {"SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}


def _says(told: CommandResult) -> Callable[[Sequence[str]], CommandResult]:
    return lambda _: told


def test_slurm_tells_how_long_its_job_may_last_and_whether_its_time_is_over() -> None:
    assert seconds_left({}, lambda _: CommandResult(0, stdout="1:00")) == 0.0
    assert seconds_left({"SLURM_JOB_ID": "x"}, lambda _: CommandResult(0, stdout="1:00")) == 0.0
    assert seconds_left(_JOB, lambda _: CommandResult(0, stdout="1:00\n")) == 60.0
    assert seconds_left(_JOB, lambda _: CommandResult(1, stdout="1:00\n")) == 0.0
    for stdout, status, over in (("TimeLimit\n", 0, True), ("TimeLimit\n", 1, False), ("None\n", 0, False)):
        assert is_over(_JOB, _says(CommandResult(status, stdout=stdout))) is over
    assert is_over({}, lambda _: CommandResult(0, stdout="TimeLimit")) is False
    asked: list[list[str]] = []

    def call(words: Sequence[str]) -> CommandResult:
        asked.append(list(words))
        return CommandResult(1)

    seconds_left(_JOB, call)
    assert asked == [["squeue", "--noheader", "--jobs=12", "--format=%L"]]


@pytest.mark.parametrize(
    "environment, everywhere, alone, told",
    [
        (_WIDE, CommandResult(0), CommandResult(0), ""),
        (_WIDE, CommandResult(1, " lost n2\nmore"), CommandResult(0), "lost n2"),
        (_WIDE, CommandResult(1, "l" * 400), CommandResult(0), "l" * 300),
        (_WIDE, CommandResult(1, ""), CommandResult(0), "no answer in 30 s"),
        (_WIDE, CommandResult(1, "lost"), CommandResult(1), ""),
        (_WIDE, CommandResult(None, "no srun"), CommandResult(0), ""),
        (_WIDE, CommandResult(None, "", in_time=False), CommandResult(0), "no answer in 30 s"),
        ({**_WIDE, "SLURM_JOB_NUM_NODES": "1"}, CommandResult(1, "lost"), CommandResult(0), ""),
        ({"SLURM_JOB_NUM_NODES": "2"}, CommandResult(1, "lost"), CommandResult(0), ""),
        ({"SLURMD_NODENAME": "n1"}, CommandResult(1, "lost"), CommandResult(0), ""),
    ],
)
def test_a_node_is_lost_where_this_one_answers_and_not_all_do(
    environment: dict[str, str], everywhere: CommandResult, alone: CommandResult, told: str
) -> None:
    asked: list[list[str]] = []

    def run(words: Any) -> CommandResult:
        asked.append(list(words))
        return alone if "--nodelist=n1" in words else everywhere

    assert lost_node(environment, run) == told
    words = ["srun", "--overlap", "--mem=0", "--input=none", "--ntasks-per-node=1"]
    assert asked[:1] in ([], [[*words, "--nodes=2", "--ntasks=2", "true"]])
    assert asked[1:] in ([], [[*words, "--nodes=1", "--ntasks=1", "--nodelist=n1", "true"]])
