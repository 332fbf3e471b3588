"""How far a job is, as it is drawn on a terminal, said in lines where there is none, and summed up in cards."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import termios
from pathlib import Path

import pytest

from pilotage.cli.shared import progress
from pilotage.cli.shared import progress as cards
from pilotage.cli.shared.progress import (
    BarDisplay,
    LineDisplay,
    Meter,
    Style,
    board_lines,
    counts_line,
    end_text,
    rate_text,
)
from pilotage.model.answers import EndForecast, FailureCard, FailureGroup, Progress, StageProgress
from pilotage.model.texts import size_text

PLAIN = Style(encoding="utf-8", coloured=False)


def told(**said: object) -> Progress:
    fields: dict[str, object] = {"job": "sweep-1", "state": "RUNNING", "packages": 100}
    return Progress(**(fields | said))  # type: ignore[arg-type]


def failed(count: int = 1, **said: object) -> FailureGroup:
    fields: dict[str, object] = {"package": "1.4.1", "reason": "out-of-memory", "cause": "retries-exhausted"}
    return FailureGroup(count=count, card=FailureCard(**(fields | said)))  # type: ignore[arg-type]


# --- rate and time ----------------------------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_last_minute() -> None:
    meter = Meter()
    for second in range(0, 101, 10):
        meter.note(told(done=second // 10 if second <= 40 else (second - 40) * 2), now=float(second))
    assert meter.per_second == pytest.approx((120 - 4) / 60)


def test_what_an_earlier_run_made_says_nothing_about_the_rate() -> None:
    meter = Meter()
    meter.note(told(), now=0.0)
    meter.note(told(done=60, adopted=50), now=10.0)
    assert meter.per_second == 1.0
    assert meter.left_seconds(told(done=60, adopted=50)) == 40.0


def test_nobody_says_how_long_it_takes_before_anything_ended_or_while_a_stage_is_not_known() -> None:
    meter = Meter()
    meter.note(told(), now=0.0)
    meter.note(told(running=2), now=5.0)
    assert meter.left_seconds(told(running=2)) is None
    meter.note(told(done=2), now=6.0)
    assert meter.left_seconds(told(done=2, stages=(StageProgress(stage=2, late=True),))) is None


@pytest.mark.parametrize(
    "per_second, text", [(41.3, "41/s"), (2.34, "2.3/s"), (0.05, "3.0/min"), (0.0005, "1.8/h"), (0.0001, "0.4/h")]
)
def test_a_rate_is_told_in_a_unit_that_fits(per_second: float, text: str) -> None:
    assert rate_text(per_second) == text


def test_the_counts_name_what_there_is_and_nothing_else() -> None:
    assert counts_line(told(done=3, running=2)) == "3 of 100 packages done, 2 running"
    assert counts_line(told(moving="fetching 1 file (1 MiB)")) == "0 of 100 packages done, fetching 1 file (1 MiB)"
    line = counts_line(told(done=3, failed=1, healed=2, held=True, trouble="site x does not answer"))
    assert line == "3 of 100 packages done, 1 failed, 2 healed (held); site x does not answer"


@pytest.mark.parametrize(
    "seconds, text",
    [
        ((12 * 60.0, 9 * 60.0, 20 * 60.0), "done in about 12 min (9 to 20)"),
        ((45.0, 30.0, 80.0), "done in about 45 s (30 to 80)"),
        ((129.0, 111.0, 159.0), "done in about 2.1 min (1.9 to 2.6)"),
        ((9 * 60.0, 8 * 60.0, 40 * 60.0), "done in about 9.0 min (8.0 to 40)"),
        ((3.5 * 3600.0, 2.75 * 3600.0, 12 * 3600.0), "done in about 3.5 h (2.8 to 12)"),
        ((3 * 86400.0, 2 * 86400.0, 9 * 86400.0), "done in about 3.0 d (2.0 to 9.0)"),
        ((-5.0, -9.0, 20.0), "done in about 0 s (0 to 20)"),
        ((-50.0, -90.0, -20.0), "expected to be done by now"),
    ],
)
def test_the_forecast_is_told_with_its_interval(seconds: tuple[float, float, float], text: str) -> None:
    median, low, high = (1000.0 + each for each in seconds)
    forecast = EndForecast(made_at=900.0, median_at=median, low_at=low, high_at=high, mean_at=median)
    assert end_text(forecast, now=1000.0) == text


def test_the_forecast_replaces_the_time_at_the_present_rate_and_a_held_job_has_none() -> None:
    meter = Meter()
    meter.note(told(), now=0.0)
    meter.note(told(done=10), now=10.0)
    assert counts_line(told(done=10), meter) == "10 of 100 packages done, 1.0/s, 1 min 30 s left"
    known = EndForecast(made_at=0.0, median_at=300.0, low_at=200.0, high_at=600.0, mean_at=300.0)
    line = counts_line(told(done=10, forecast=known), meter)
    assert line == "10 of 100 packages done, 1.0/s, done in about 5.0 min (3.3 to 10)"
    assert "done in" not in counts_line(told(done=10, forecast=known, held=True), meter)
    past = counts_line(told(done=10, forecast=known, now=650.0), meter)
    assert past.endswith("expected to be done by now")
    assert counts_line(told(done=10, forecast=known, now=700.0), meter).endswith("1 min 30 s left")
    assert "done in" not in counts_line(told(done=10, forecast=known))


# --- bars -------------------------------------------------------------------------------------------------------------


def board(progress_: Progress, *, width: int = 80, height: int = 24, style: Style = PLAIN) -> list[str]:
    return board_lines(progress_, Meter(), width=width, height=height, style=style)


def test_a_stage_has_a_bar_that_is_as_full_as_it_is_done() -> None:
    stage = StageProgress(stage=1, name="simulate", packages=100, done=50, running=3)
    (line, _) = board(told(stages=(stage,)))
    assert line.count("━") == line.count("─") == progress.BAR_CELLS_MAX // 2
    assert line.endswith("50/100  3 running")


def test_one_failure_among_many_is_seen_in_the_bar() -> None:
    stage = StageProgress(stage=1, name="simulate", packages=1_000_000, done=10, failed=1)
    (line, _) = board(told(stages=(stage,)))
    assert line.count("x") == 1
    assert "1 failed" in line


def test_a_bar_is_full_only_when_all_is_over() -> None:
    nearly = StageProgress(stage=1, name="s", packages=1_000_000, done=999_999)
    assert "─" in board(told(stages=(nearly,)))[0]
    over = StageProgress(stage=1, name="s", packages=1_000_000, done=1_000_000)
    assert "─" not in board(told(stages=(over,)))[0]


def test_signs_that_the_locale_cannot_write_are_replaced() -> None:
    stage = StageProgress(stage=1, name="simulate", packages=2, done=1)
    line = board(told(stages=(stage,)), style=Style(encoding="ascii", coloured=False))[0]
    assert "#" in line
    line.encode("ascii")


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    stages = tuple(
        StageProgress(stage=n, name="a very long name " * n, packages=10**6, done=n, running=7, failed=n)
        for n in (1, 3)
    )
    for line in board(told(job="a-job-with-a-long-name-indeed", stages=stages), width=width):
        assert len(line) <= width


def test_of_many_stages_those_that_move_are_shown() -> None:
    stages = tuple(
        StageProgress(stage=n, name=f"s{n}", packages=4, done=4 if n < 30 else 1 if n == 30 else 0)
        for n in range(1, 101)
    )
    lines = board(told(stages=stages), height=10)
    assert lines[0].split()[0] == "s30"
    assert len(lines) <= 10
    assert "94 more stages" in lines[-2]


def test_a_stage_that_is_not_known_yet_says_so_and_an_empty_one_is_left_out() -> None:
    lines = board(told(stages=(StageProgress(stage=1, name="late", late=True), StageProgress(stage=2, name="none"))))
    assert [line.split() for line in lines[:-1]] == [["late", "not", "known", "yet"]]


def test_a_name_cannot_steer_the_terminal() -> None:
    stage = StageProgress(stage=1, name="\x1b[2Jevil", packages=1)
    assert not any("\x1b" in line for line in board(told(job="j\x1b[2J", stages=(stage,))))


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_comes_at_most_every_few_seconds_and_only_with_news(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay()
    for tenth in range(301):
        lines.show(told(done=min(tenth // 20, 10)), now=tenth / 10)
    said = capsys.readouterr().err.splitlines()
    assert len(said) <= 6
    assert said[0].startswith("sweep-1: 2 of 100 packages done")
    quiet = LineDisplay()
    for second in range(100):
        quiet.show(told(running=2), now=float(second))
    assert capsys.readouterr().err.count("\n") == 1


def test_each_kind_of_failure_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay()
    group = failed(exit_message="killed at 2 GiB\nlast words")
    for now in (0.0, 0.1, 0.2):
        lines.show(told(failures=(group,)), now=now)
    lines.show(told(failures=(group, failed(reason="wall-time"), failed(cause="upstream", reason=""))), now=0.3)
    assert capsys.readouterr().err.splitlines() == [
        "sweep-1/1.4.1 failed (out-of-memory, retries-exhausted): killed at 2 GiB",
        "sweep-1/1.4.1 failed (wall-time, retries-exhausted)",
    ]


# --- cards ------------------------------------------------------------------------------------------------------------


def test_a_card_tells_cause_end_memory_host_last_words_and_what_to_do() -> None:
    group = failed(
        3, path="sweep/001/004/001", attempt=2, site="local", node="farm7", exit_code="EXECUTION_FAILED", signal=9,
        peak_memory_bytes=2 * 2**30, exit_message="it was killed\nline a\nline b\n",
    )  # fmt: skip
    lines = "".join(cards.failure_lines(told(failed=4, failures=(group,)))).splitlines()
    assert lines == [
        "failures",
        "  3 packages: out-of-memory, retries-exhausted",
        "    such as sweep-1/1.4.1 (sweep/001/004/001), attempt 2 at local on farm7",
        "    EXECUTION_FAILED, signal 9 (SIGKILL), peak memory 2 GiB",
        "    it was killed",
        "      | line a",
        "      | line b",
        "    it will not be retried automatically",
        "    look further: pilotage logs sweep-1/1.4.1",
        '  and 1 other; see them with: pilotage query "job=sweep-1 and state=ABORTED"',
    ]


def test_a_card_of_what_was_over_too_soon_says_below_what_its_memory_was() -> None:
    below = FailureCard(package="1.1.1", exit_status=3, peak_memory_below_bytes=24 * 2**20)
    assert "    exit status 3, peak memory below 24 MiB\n" in list(cards.card_lines("j", below))


def test_a_card_of_what_is_tried_again_says_so() -> None:
    lines = list(cards.card_lines("j", FailureCard(package="1.1.1", exit_status=3, again=True)))
    assert "    exit status 3\n" in lines
    assert "    it will be retried\n" in lines


@pytest.mark.parametrize(
    "size_bytes, text", [(0, "0 B"), (1536, "1.5 KiB"), (2**20 - 1, "1024 KiB"), (2**31, "2 GiB"), (2**40, "1 TiB")]
)
def test_sizes_are_told_as_people_say_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


# --- on a real terminal -----------------------------------------------------------------------------------------------


def drawn_on_a_terminal(source: str, *, size: tuple[int, int] = (24, 60), **environment: str) -> str:
    """What a Python program writes to its standard error, which is a terminal of so many lines and columns."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover # another process
        termios.tcsetwinsize(2, size)
        os.environ.pop("COLUMNS", None)
        # Said in full: readline, where a test runner has imported it, sets COLUMNS behind the back of os.environ.
        os.execve(sys.executable, [sys.executable, "-c", source], os.environ | {"TERM": "xterm", **environment})
    found = b""
    try:
        while select.select([terminal], [], [], 30)[0]:
            piece = os.read(terminal, 65536)
            if not piece:
                break
            found += piece
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(terminal)
        assert os.waitpid(child, 0)[1] == 0, found
    return found.decode("utf-8", "replace")


DRAWING = """
from pilotage.cli.shared.progress import choose_display
from pilotage.cli.shared.streams import guard_standard_streams
from pilotage.model.answers import EndForecast, Progress, StageProgress
guard_standard_streams()
shown = choose_display()
for done in (0, 50, 100):
    stage = StageProgress(stage=1, name="simulate", packages=100, done=done)
    shown.show(Progress(job="j", state="RUNNING", packages=100, done=done, stages=(stage,)), now=float(done))
shown.close()
"""


def test_on_a_terminal_bars_are_drawn_over_those_before() -> None:
    text = drawn_on_a_terminal(DRAWING, LC_ALL="C.UTF-8")
    assert text.count("\x1b[2A") == 2
    assert "━" in text
    assert "\x1b[32m" in text


def test_a_terminal_that_says_nothing_of_its_size_has_the_usual_width() -> None:
    text = drawn_on_a_terminal(DRAWING, size=(0, 0), LC_ALL="C.UTF-8", NO_COLOR="1")
    assert "100 of 100 packages done" in text
    assert "…" not in text
    assert "━" * 40 in text


def test_no_color_is_respected_and_the_bars_stay() -> None:
    text = drawn_on_a_terminal(DRAWING, NO_COLOR="1", LC_ALL="C.UTF-8")
    assert not re.search("\x1b\\[[0-9;]*m", text)
    assert "\x1b[2A" in text


def test_a_locale_without_the_signs_gets_others() -> None:
    text = drawn_on_a_terminal(DRAWING, PYTHONIOENCODING="ascii")
    assert "#####" in text
    assert text.isascii()


def test_a_dumb_terminal_gets_lines() -> None:
    text = drawn_on_a_terminal(DRAWING, TERM="dumb")
    assert "\x1b" not in text
    assert "j: 50 of 100 packages done" in text


def test_what_was_drawn_last_stays_when_it_is_closed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bars = BarDisplay()
    bars.show(told(done=1), now=0.0)
    bars.close()
    bars.show(told(done=2), now=1.0)
    assert "\x1b[1A" not in capsys.readouterr().err
