"""The picture and the tables of the documentation are those of the code."""

from __future__ import annotations

import re

from pilotage.model.events.events import EVENT_TYPES
from pilotage.model.reference import (
    UNFINISHED,
    compound_table,
    event_tables,
    state_diagram,
    state_table,
    transition_table,
)
from pilotage.model.states import COMPOUND_RULES, TRANSITIONS, State

EDGE = re.compile(r"^ +(\S+) --> (\S+): (.+)$", re.MULTILINE)


def test_every_edge_of_the_diagram_is_a_move_of_the_table_and_every_move_has_one() -> None:
    moves = {(each.event, source, each.target) for each in TRANSITIONS for source in each.sources}
    drawn = set()
    for source, target, label in EDGE.findall(state_diagram()):
        for event in re.findall(r"[A-Z]\w+", re.sub(r"\([^)]*\)", "", label)):
            if source != "[*]":
                sources = UNFINISHED if source == "UNFINISHED" else (State(source),)
                drawn |= {(event, each, State(target)) for each in sources}
    assert drawn <= moves
    assert {(event, target) for event, _, target in drawn} == {(event, target) for event, _, target in moves}


def test_the_diagram_shows_every_state_and_begins_where_a_package_does() -> None:
    text = state_diagram()
    assert text.startswith("```mermaid\nstateDiagram-v2\n")
    assert all(re.search(rf"\b{state.value}\b", text) for state in State)
    assert "        [*] --> SUBMITTED: JobRegistered\n" in text
    assert "    UNFINISHED --> ABORTED: Aborted\n" in text
    assert not re.search(r"UNFINISHED --> (SUBMITTED|WAITING|READY|SCHEDULED|RUNNING)", text), "into its own inside"
    assert text.count("{") == text.count("}") == 1


def test_the_tables_have_a_row_for_each_thing() -> None:
    assert [line.split("`")[1] for line in state_table().splitlines()[2:]] == [state.value for state in State]
    assert [line.split("`")[1] for line in transition_table().splitlines()[2:]] == [each.event for each in TRANSITIONS]
    assert len(compound_table().splitlines()) == len(COMPOUND_RULES) + 2


def test_the_reference_of_events_has_every_type_with_all_its_fields() -> None:
    text = event_tables()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### )", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(EVENT_TYPES)
    for name, known in EVENT_TYPES.items():
        fields = re.findall(r"^\| `(\w+)` \|", sections[name], re.MULTILINE)
        assert tuple(fields) == known.payload.__struct_fields__
        assert f"Version {known.version}." in sections[name]
    assert "said by the service alone" in sections["CommitGranted"]
    assert "| `exit_code` | `SUCCESS` or" in sections["AttemptFinished"]
    assert "**PhaseTimes.**" in text
    assert "**TemplateShape.**" in text, "a value inside a value"
