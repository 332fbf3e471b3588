"""The table of states as a picture and as tables, for the documentation: what is drawn is what the book does.

A forward move is drawn from the nearest state that it can begin in; that it can also begin further back, because a later
fact implies the earlier ones, stands in the table below the picture.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.model.states import ADVANCE, COMPOUND_RULES, FINAL_STATES, MEANINGS, TRANSITIONS, State, Transition

UNFINISHED = tuple(state for state in State if state not in FINAL_STATES)
_GROUP = "UNFINISHED"


def state_diagram() -> str:
    """The moves of a package as a Mermaid state diagram."""
    labels: dict[tuple[str, str], list[str]] = {}
    for transition in TRANSITIONS:
        for source in _drawn_from(transition):
            words = labels.setdefault((source, transition.target.value), [])
            if _label(transition) not in words:
                words.append(_label(transition))
    inside = {state.value for state in UNFINISHED}
    edges = [(source, target, ", ".join(words)) for (source, target), words in labels.items()]
    lines = ["stateDiagram-v2", f'    state "not finished" as {_GROUP} {{']
    lines += ["        [*] --> SUBMITTED: JobRegistered"]
    lines += [f"        {one} --> {two}: {words}" for one, two, words in edges if {one, two} <= inside]
    lines += ["    }"]
    lines += [f"    {one} --> {two}: {words}" for one, two, words in edges if not {one, two} <= inside]
    return "\n".join(["```mermaid", *lines, "```"]) + "\n"


def _drawn_from(transition: Transition) -> Iterator[str]:
    """The states that a move is drawn from."""
    sources = [state for state in transition.sources if state != transition.target]
    target = transition.target
    if target not in UNFINISHED and set(UNFINISHED) <= set(sources):
        yield _GROUP
        yield from (state.value for state in sources if state not in UNFINISHED)
        return
    back = [state for state in sources if ADVANCE[state] > ADVANCE[target]]
    if back:
        yield from (state.value for state in back)
    elif sources:
        yield max(sources, key=ADVANCE.__getitem__).value


def _label(transition: Transition) -> str:
    # A colon or a semicolon would end the label.
    note = transition.note.partition(";")[0].replace(":", ",")
    return f"{transition.event} ({note})" if note else transition.event


def state_table() -> str:
    """Every state with its meaning."""
    lines = ["| state | meaning | final | DØ status |", "|---|---|---|---|"]
    lines += [
        f"| `{state.value}` | {meaning.meaning} | {'yes' if meaning.final else ''} | {meaning.dzero} |"
        for state, meaning in MEANINGS.items()
    ]
    return "\n".join(lines) + "\n"


def transition_table() -> str:
    """Every move, with all states that it can begin in."""
    lines = ["| event | from | to | |", "|---|---|---|---|"]
    lines += [
        f"| `{each.event}` | {_states(each.sources)} | `{each.target.value}` | {each.note} |" for each in TRANSITIONS
    ]
    return "\n".join(lines) + "\n"


def _states(states: tuple[State, ...]) -> str:
    if set(states) == set(State):
        return "any"
    if set(states) == set(UNFINISHED):
        return "any that is not final"
    return ", ".join(f"`{state.value}`" for state in states)


def compound_table() -> str:
    """The rule for lines, stages and jobs, in its order."""
    lines = ["| | first that holds | state |", "|---|---|---|"]
    lines += [
        f"| {number} | {rule.condition} | `{rule.state.value}` |" for number, rule in enumerate(COMPOUND_RULES, 1)
    ]
    return "\n".join(lines) + "\n"
