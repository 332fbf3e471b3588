"""What `pilotage explain` and the help of groups print: all of it, and what is alike once."""

from __future__ import annotations

import msgspec
from click.testing import CliRunner

from pilotage.cli.jobs.status import explanation_lines
from pilotage.cli.program import main
from pilotage.cli.shared.output import fields_of
from pilotage.cli.shared.server import JobOrPackage
from pilotage.model.answers import Explanation, Why
from pilotage.model.events.payloads import BinaryEnd


def lines(*reasons: Why) -> list[str]:
    told = Explanation(job="j", package="1.1.1", epoch=1, standing="ready", reasons=reasons)
    return [line.strip() for line in explanation_lines(JobOrPackage("j", "1.1.1"), told)][1:]


def unable(site: str, message: str) -> Why:
    return Why(code="site-unable", message=message, subject=site)


def test_sites_that_could_never_run_it_are_told_once_and_behind_the_others() -> None:
    full = Why(code="site-full", message="nice has room for 3", subject="nice")
    turn = Why(code="after-others", message="k goes before", subject="k")
    alone = "it may run at nice only"
    told = lines(unable("lyon", alone), full, unable("oslo", alone), unable("rome", "2 cores"), turn)
    assert told == [full.message, f"lyon, oslo: {alone}", "rome: 2 cores", turn.message]


def test_the_expected_times_come_before_the_reasons() -> None:
    waiting = Explanation(
        job="j", package="1.1.1", epoch=1, standing="ready", reasons=(), expected_start_at=5.0, expected_end_at=65.0
    )
    running = Explanation(job="j", package="1.1.1", epoch=1, standing="live", reasons=(), expected_end_at=65.0)
    for told, said in (
        (waiting, "start 1970-01-01 00:00:05Z and to end 1970-01-01 00:01:05Z"),
        (running, "end 1970-01-01 00:01:05Z"),
    ):
        _, line = explanation_lines(JobOrPackage("j", "1.1.1"), told)
        assert line == f"  expected to {said}\n"


def test_times_of_a_node_elsewhere_are_told_in_utc_and_by_its_clocks() -> None:
    told = Explanation(
        job="j", package="1.1.1", epoch=1, standing="live", reasons=(),
        started_at=5.0, expected_end_at=65.0, utc_offset="-07:30",
    )  # fmt: skip
    _, started, expected = explanation_lines(JobOrPackage("j", "1.1.1"), told)
    assert started == "  started 1970-01-01 00:00:05Z (1969-12-31 16:30:05-07:30 at the node)\n"
    assert expected == "  expected to end 1970-01-01 00:01:05Z (1969-12-31 16:31:05-07:30 at the node)\n"
    over = msgspec.structs.replace(told, standing="done", ended_at=10.0, expected_end_at=None, utc_offset="")
    _, line = explanation_lines(JobOrPackage("j", "1.1.1"), over)
    assert line == "  started 1970-01-01 00:00:05Z and ended 1970-01-01 00:00:10Z\n"


def test_how_each_binary_of_the_last_attempt_ran_stands_below_the_reasons() -> None:
    binaries = (
        BinaryEnd(number=1, name="gen", started_at=5.0, seconds=1.5, exit_status=0),
        BinaryEnd(number=2, started_at=6.5, seconds=61.0, signal=11, reason="crash"),
    )
    told = Explanation(job="j", package="1.1.1", epoch=1, standing="aborted", reasons=(), ended=3, binaries=binaries)
    _, head, first, second = (line.split() for line in explanation_lines(JobOrPackage("j", "1.1.1"), told))
    assert " ".join(head) == "binaries of attempt 3"
    assert first == ["1", "gen", "1970-01-01", "00:00:05Z", "1.5", "s", "exit", "code", "0"]
    assert second[3:] == ["1", "min", "1", "s", "signal", "11", "crash"]


def test_the_help_of_a_group_cuts_no_line() -> None:
    for group in ("site", "book"):
        shown = CliRunner().invoke(main, [group, "--help"], standalone_mode=False).output
        assert "..." not in shown.partition("Commands:")[2]


def test_what_was_learned_of_a_site_is_not_among_the_words_of_an_event() -> None:
    assert fields_of({"reason": "by-hand", "learned": "{}"}) == "reason=by-hand"
