"""ULM files, whatever they hold: nothing raises, and neither order nor repetition of lines changes a job."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from pilotage.book.ulm import SequenceCode, UlmEvent, parse_code, parse_line, read_ulm
from pilotage.book.ulm.lines import MOVES, RESULT_FIELDS, SOURCES
from pilotage.model.states import State
from tests.kit.ulm import LoggedJob, ulm_line

KINDS = sorted({kind for kind, _, _ in MOVES})
RESULTS = sorted({part for _, _, result in MOVES for part in result.split("/")})
JOBS = ("", "a", "b", "c")
COUNTER = st.integers(0, 3)
# Mostly codes that meet, so that ties are broken, and some of every kind.
CODES = st.one_of(
    st.builds(lambda wm, lm: SequenceCode(1, 1, wm, 0, 0, lm, 0, 0, 0), st.integers(0, 1), st.integers(0, 1)),
    st.builds(SequenceCode, *[COUNTER] * 9),
)
STEPS = (
    "HelperCall",
    "Match",
    "Running",
    "Done",
    "Resubmission",
    "ReallyRunning",
    "EnQueued",
    "Cancel",
    "Abort",
    "Clear",
)


@st.composite
def any_event(draw: st.DrawFn) -> str:
    """A line that parses, of a few jobs that may be each other's parents, with codes that often meet."""
    kind = draw(st.sampled_from(KINDS))
    fields = {f"DG__{kind.upper()}__{name}": draw(st.sampled_from(RESULTS)) for name in RESULT_FIELDS.get(kind, ())}
    if kind == "RegJob":
        fields["DG__REGJOB__JOBTYPE"] = draw(
            st.sampled_from(("COLLECTION", "SIMPLE", "DAG", "FILE_TRANSFER_COLLECTION"))
        )
        fields["DG__REGJOB__PARENT"] = draw(st.sampled_from(JOBS))
        fields["DG__REGJOB__NSUBJOBS"] = str(draw(COUNTER))
    if kind == "Match":
        fields["DG__MATCH__DEST_ID"] = draw(st.sampled_from(("", "ce1", "ce2", "ce3")))
    if kind == "ReallyRunning":
        fields["DG__REALLYRUNNING__WN_SEQ"] = str(draw(CODES))
    return ulm_line(
        DATE=f"2008092805245{draw(st.integers(0, 1))}",
        DG__SOURCE=draw(st.sampled_from(("", *SOURCES))),
        DG__EVNT=kind,
        DG__JOBID=draw(st.sampled_from(JOBS)),
        DG__SEQCODE=str(draw(CODES)),
        **fields,
    )


@given(lines=st.lists(any_event(), max_size=40), data=st.data())
def test_any_order_and_any_repetition_give_the_same_jobs(lines: list[str], data: st.DataObject) -> None:
    expected = read_ulm("\n".join(lines), file="f")
    assert expected.faults == ()
    mixed = data.draw(
        st.permutations(lines + data.draw(st.lists(st.sampled_from(lines), max_size=5) if lines else st.just([])))
    )
    assert read_ulm(mixed, file="f").jobs == expected.jobs
    assert sum(job.events for job in expected.jobs) == len(set(lines))


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(SOURCES[:8])), st.sampled_from(STEPS), st.sampled_from(RESULTS)), max_size=30
    ),
    data=st.data(),
)
def test_histories_of_components_that_count_are_the_same_in_any_order(
    steps: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    job = LoggedJob()
    for source, kind, result in steps:
        job.log(source, kind, **dict.fromkeys(RESULT_FIELDS.get(kind, ("DEST_ID",)), result))
    expected = read_ulm(job.text(), file="f").jobs
    assert read_ulm(data.draw(st.permutations(job.lines)), file="f").jobs == expected
    assert all(each.state in State and each.events == len(steps) for each in expected)


@given(st.one_of(st.binary(), st.text(), st.text(st.sampled_from('AD.="\\ \n\0\r1')), st.binary(max_size=5)))
@example('DG.EVNT="\\')
@example(b"\xff=\xfe")
@example("\ud800")
@example("=" * 3)
def test_no_text_raises_and_every_answer_can_be_written_out(text: str | bytes) -> None:
    imported = read_ulm(text, file="f")
    msgspec.json.encode(imported)
    lines = text.count("\n") if isinstance(text, str) else text.count(b"\n")
    assert all(1 <= problem.line <= lines + 1 for problem in imported.faults)


@given(line=any_event(), data=st.data())
def test_a_damaged_line_is_an_event_or_a_fault(line: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(line)))
    length = data.draw(st.integers(0, 9))
    damaged = line[:place] + data.draw(st.text(st.sampled_from('"\\= \0x\u2028'), max_size=4)) + line[place + length :]
    imported = read_ulm([damaged], file="f")
    assert len(imported.faults) + len(imported.jobs) == 1
    msgspec.json.encode(imported)


@given(name=st.text(st.characters(codec="utf-8"), min_size=1), other=st.text(st.characters(codec="utf-8")))
def test_what_was_escaped_is_read_back(name: str, other: str) -> None:
    line = ulm_line(A=other, DG__JOBID=name, DG__EVNT="RegJob", DG__SEQCODE=str(parse_code_of(7)), B=other)
    event = parse_line(line)
    assert isinstance(event, UlmEvent), event
    assert event.job == ("" if name == "(nil)" else name)
    assert event.oddities == ()


def parse_code_of(count: int) -> SequenceCode:
    return SequenceCode._make([count] * 9)


@given(CODES)
def test_a_code_is_read_back(code: SequenceCode) -> None:
    assert parse_code(str(code)) == code
