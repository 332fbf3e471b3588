"""Why a site was chosen: how the sites stood is noted for what is under way, and told when somebody asks.

A note is taken for a class at most every few seconds and shared by all that was bound meanwhile, so it costs a package nothing
but its place. It is in no event: of what is over the book tells where it was, and the sites are told as they stand now.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from pilotage.book.rows import PackageFacts
from pilotage.engine.classes import asked_of, template_of
from pilotage.engine.jobs import JobState
from pilotage.engine.parts import AttemptState, QueueClass
from pilotage.engine.selection.filters import Asked, allows, refusals
from pilotage.engine.selection.place import Place
from pilotage.engine.selection.pools import CANDIDATE, HIBERNATED, OVERLOADED
from pilotage.model.explanations import Why
from pilotage.model.plan import Template

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

NOTE_SECONDS = 10.0
"""So old a note may be: what is bound within this time of each other found the sites much as they were."""
_SHOWN_MAX = 20
How = Literal["chosen", "filled", "idle"]
"""By a choice among sites; where more was ready than all had room for; by a pilot that had nothing to do."""


class ChoiceNote:
    """How the sites stood for what a class asked, by their indices."""

    __slots__ = ("asked", "at", "how", "scores", "status", "until", "weights")

    def __init__(self, engine: Engine, queue: QueueClass, how: How) -> None:
        """Note how they stand now, and how a site is come by."""
        pool, places = engine.openings.pool(queue), engine.selection.sites.places
        self.at = engine.stamp
        self.until = engine.now + NOTE_SECONDS
        self.how = how
        self.asked = queue.asked
        self.status = bytes(pool.status)
        self.scores, self.weights = array("f", [0.0]) * len(self.status), array("Q", [0]) * len(self.status)
        for index in pool.candidates():
            if (place := places[index]) is not None:
                self.scores[index], self.weights[index] = place.score.value, place.weight

    def share(self, index: int) -> float:
        """How much of the weight of all candidates one had."""
        total = sum(self.weights)
        return self.weights[index] / total if total else 0.0


def noted(engine: Engine, queue: QueueClass, how: How) -> ChoiceNote | None:
    """How the sites stand for a class, or stood a moment ago; None where there is but one, and nothing to choose."""
    note = queue.notes.get(how)
    if note is not None and engine.now < note.until:
        return note
    if len(engine.selection.sites.by_name) < 2:
        return None
    note = queue.notes[how] = ChoiceNote(engine, queue, how)
    return note


def why_there(engine: Engine, attempt: AttemptState) -> Iterator[Why]:
    """Why an attempt that is under way is where it is, and not at another site; nothing where there is no other."""
    note, site, number = attempt.choice, attempt.site, attempt.ref.attempt
    if not _is_choice(engine, site.name):
        return
    went = f"attempt {number} went to {site.name}"
    if note is None:
        told = f"{went}, which was alone then, or the service was restarted since: how the sites stood is not known"
        yield Why(code="chosen", message=told, subject=site.name, since=attempt.created_at)
        return
    candidates, told = note.status.count(CANDIDATE), _how(engine, note, site.index)
    yield Why(code="chosen", message=f"{went}: {told}", subject=site.name, count=candidates, since=note.at)
    others = [place for place in engine.selection.sites.places if place is not None and place.index != site.index]
    for place in others[:_SHOWN_MAX]:
        if place.index < len(note.status):  # else it came later
            yield Why(code="not-chosen", message=_why_not(engine, place, note), subject=place.name)


def _is_choice(engine: Engine, site: str) -> bool:
    """Whether there is any site but this one."""
    return any(name != site for name in engine.selection.sites.by_name)


def _how(engine: Engine, note: ChoiceNote, index: int) -> str:
    policy, candidates = engine.settings.selection.policy, note.status.count(CANDIDATE)
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
    return f"{policy} drew it from {candidates} candidates ({_weighed(engine, note, index)})"


def _weighed(engine: Engine, note: ChoiceNote, index: int) -> str:
    """The score of a candidate, and its share of the weight where anything is drawn by that."""
    score, settings = f"score {note.scores[index]:.2f}", engine.settings.selection
    if settings.policy == "thompson" and note.status.count(CANDIDATE) <= settings.thompson_looked_at:
        return score
    return f"{score}, {note.share(index):.0%} of the weight"


def _why_not(engine: Engine, place: Place, note: ChoiceNote) -> str:
    index, name = place.index, place.name
    status = note.status[index]
    if status == CANDIDATE and note.how == "filled":
        return f"{name} was given as much as it had room for, too"
    if status == CANDIDATE:
        return f"{name} could have been picked ({_weighed(engine, note, index)})"
    if status == HIBERNATED:
        return f"{name} slept"
    if status == OVERLOADED:
        return f"{name} had no room"
    told = "; ".join(each.message for each in refusals(place.description, note.asked))
    return f"{name} could not run it" + (f": {told}" if told else "")


def why_it_was_there(engine: Engine, job: JobState, number: int, facts: PackageFacts) -> Iterator[Why]:
    """Of a package that is over: where its granted attempt was, by the book, and how the sites stand now for one like it."""
    known = facts.attempts.get(job.granted[number])
    if known is None or not known.site or not _is_choice(engine, known.site):
        return
    message = f"attempt {job.granted[number]} went to {known.site}: how the sites stood is kept only while it runs"
    yield Why(code="chosen", message=message, subject=known.site, since=known.created_at)
    template = template_of(job, number)
    asked, shape = _asked_now(engine, job, template), engine.shape_of(template.demand)
    pool = engine.selection.pool(asked, shape)
    choice = engine.selection.explain_choice(now=engine.stamp, asked=asked, shape=shape)
    if not pool.users:
        engine.selection.forget(asked, shape)
    for each in choice.sites:
        reason = next((stage.message for stage in each.stages if not stage.passes), each.stages[-1].message)
        told = f"now {each.site} is {each.status} for one like it (score {each.score:.2f}): {reason}"
        yield Why(code="site-now", message=told, subject=each.site)


def _asked_now(engine: Engine, job: JobState, template: Template) -> Asked:
    """What one more of a template would ask: its estimate counts only where some site lasts so long, as for what waits."""
    asked = asked_of(job.owner, template, demand=template.demand, run_seconds=template.run_seconds)
    places = [place for place in engine.selection.sites.places if place is not None]
    lasts = any(allows(place.description, asked) for place in places)
    return asked if lasts else msgspec.structs.replace(asked, run_seconds=0.0)
