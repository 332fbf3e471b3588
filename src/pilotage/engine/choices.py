"""Why a site was chosen: how the sites stood is noted for what is under way, and told when somebody asks.

A note is taken for a class at most every few seconds and shared by all that was bound meanwhile, so it costs a package nothing
but its place. It is in no event: of what is over the book tells where it was, and the sites are told as they stand now.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pilotage.book.rows import PackageFacts
from pilotage.engine.classes import asked_of
from pilotage.engine.engine_state import EngineState
from pilotage.engine.jobs import JobState, QueueClass, template_of
from pilotage.engine.places import AttemptState
from pilotage.engine.selection.filters import Asked, allows, refusals
from pilotage.engine.selection.place import Place
from pilotage.engine.selection.pools import CANDIDATE, HIBERNATED, OVERLOADED, How, SelectionSnapshot
from pilotage.model.explanations import Why
from pilotage.model.plan import Template

NOTE_SECONDS = 10.0
"""So old a note may be: what is bound within this time of each other found the sites much as they were."""
_SHOWN_MAX = 20


def snapshot(state: EngineState, queue: QueueClass, how: How) -> SelectionSnapshot:
    """How the sites stand for a class now."""
    return SelectionSnapshot(
        state.placement.pool(queue),
        state.selection.sites.places,
        asked=queue.asked,
        at=state.clock.wall_time,
        until=state.clock.now + NOTE_SECONDS,
        how=how,
    )


def noted(state: EngineState, queue: QueueClass, how: How) -> SelectionSnapshot | None:
    """How the sites stand for a class, or stood a moment ago; None where there is but one, and nothing to choose."""
    note = queue.notes.get(how)
    if note is not None and state.clock.now < note.until:
        return note
    if len(state.selection.sites.by_name) < 2:
        return None
    note = queue.notes[how] = snapshot(state, queue, how)
    return note


def why_there(state: EngineState, attempt: AttemptState) -> Iterator[Why]:
    """Why an attempt that is under way is where it is, and not at another site; nothing where there is no other."""
    note, site, number = attempt.choice, attempt.site, attempt.ref.attempt
    if not _is_choice(state, site.name):
        return
    went = f"attempt {number} went to {site.name}"
    if note is None:
        told = f"{went}, which was alone then, or the service was restarted since: how the sites stood is not known"
        yield Why(code="chosen", message=told, subject=site.name, since=attempt.created_at)
        return
    candidates, told = note.status.count(CANDIDATE), _how(state, note, site.index)
    yield Why(code="chosen", message=f"{went}: {told}", subject=site.name, count=candidates, since=note.at)
    others = [place for place in state.selection.sites.places if place is not None and place.index != site.index]
    for place in others[:_SHOWN_MAX]:
        if place.index < len(note.status):  # else it came later
            yield Why(code="not-chosen", message=_why_not(state, place, note), subject=place.name)


def _is_choice(state: EngineState, site: str) -> bool:
    """Whether there is any site but this one."""
    return any(name != site for name in state.selection.sites.by_name)


def _how(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    policy, candidates = state.settings.selection.policy, note.status.count(CANDIDATE)
    if note.how == "idle":
        return "its pilots had nothing to do, and where it was reserved it could not begin"
    if note.how == "filled":
        return "more was ready than all sites had room for"
    if index >= len(note.status) or note.status[index] != CANDIDATE:
        return "a moment before it had no room, and then it had"
    if candidates == 1:
        return f"no other site could be picked (score {note.scores[index]:.2f})"
    if policy == "best":
        return f"it had the best score of {candidates} candidates (score {note.scores[index]:.2f})"
    if policy == "first":
        return f"it stood first of {candidates} candidates"
    return f"{policy} drew it from {candidates} candidates ({_weighed(state, note, index)})"


def _weighed(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    """The score of a candidate, and its share of the weight where anything is drawn by that."""
    score, settings = f"score {note.scores[index]:.2f}", state.settings.selection
    if settings.policy == "thompson" and note.status.count(CANDIDATE) <= settings.thompson_looked_at:
        return score
    return f"{score}, {note.share(index):.0%} of the weight"


def _why_not(state: EngineState, place: Place, note: SelectionSnapshot) -> str:
    index, name = place.index, place.name
    status = note.status[index]
    if status == CANDIDATE and note.how == "filled":
        return f"{name} was given as much as it had room for, too"
    if status == CANDIDATE:
        return f"{name} could have been picked ({_weighed(state, note, index)})"
    if status == HIBERNATED:
        return f"{name} slept"
    if status == OVERLOADED:
        return f"{name} had no room"
    told = "; ".join(each.message for each in refusals(place.description, note.asked))
    return f"{name} could not run it" + (f": {told}" if told else "")


def why_it_was_there(state: EngineState, job: JobState, number: int, facts: PackageFacts) -> Iterator[Why]:
    """Of a package that is over: where its granted attempt was, by the book, and how the sites stand now for one like it."""
    known = facts.attempts.get(job.granted[number])
    if known is None or not known.site or not _is_choice(state, known.site):
        return
    message = f"attempt {job.granted[number]} went to {known.site}: how the sites stood is kept only while it runs"
    yield Why(code="chosen", message=message, subject=known.site, since=known.created_at)
    template = template_of(job, number)
    asked, shape = _asked_now(state, job, template), state.shapes.number_of(template.demand)
    pool = state.selection.pool(asked, shape)
    choice = state.selection.explain_choice(now=state.clock.wall_time, asked=asked, shape=shape)
    if not pool.users:
        state.selection.forget(asked, shape)
    for each in choice.sites:
        reason = next((stage.message for stage in each.stages if not stage.passes), each.stages[-1].message)
        told = f"now {each.site} is {each.status} for one like it (score {each.score:.2f}): {reason}"
        yield Why(code="site-now", message=told, subject=each.site)


def _asked_now(state: EngineState, job: JobState, template: Template) -> Asked:
    """What one more of a template would ask: its estimate counts only where some site lasts so long, as for what waits."""
    asked = asked_of(job.owner, template, demand=template.demand, run_seconds=template.run_seconds)
    places = [place for place in state.selection.sites.places if place is not None]
    lasts = any(allows(place.description, asked) for place in places)
    return asked if lasts else msgspec.structs.replace(asked, run_seconds=0.0)
