"""What a set of events means, found the slow way: sort, filter, take the last. Written from the rules of the book and
apart from its code, as what its answers are compared with.

Given are events as on the wire, each once, in any order; nothing here goes step by step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.kit.standing import WireEvent, places, total_key

ATTEMPT_TYPES = {
    "AttemptCreated", "AttemptQueued", "AttemptStarted", "AttemptSuspected", "AttemptRecovered", "AttemptLost",
    "PhaseEntered", "OutputsStaged", "AttemptFinished", "CommitGranted", "OutputsStored", "OutputsDisposed",
}  # fmt: skip
NOT_RUNNING = {"AttemptCreated", "AttemptQueued", "AttemptLost", "OutputsStored", "OutputsDisposed"}
JOB_EPOCH_TYPES = {"CancelAccepted", "Aborted", "Cleared", "Restarted"}
EPOCH_TYPES = JOB_EPOCH_TYPES | {"Bound", "Unbound", "ReplicaWanted"}
STATES = ("SUBMITTED", "WAITING", "READY", "SCHEDULED", "RUNNING", "DONE", "ABORTED", "CANCELLED", "CLEARED")
# The most advanced first; a grant outranks a cancel, and a cancel outranks giving up.
ADVANCED = ("CLEARED", "DONE", "CANCELLED", "ABORTED", "RUNNING", "SCHEDULED", "READY", "WAITING", "SUBMITTED")
MOVABLE = ("SUBMITTED", "WAITING", "READY", "SCHEDULED")

Found = dict[str, Any]


def last(
    events: Iterable[WireEvent], *types: str, where: Callable[[WireEvent], bool] = lambda _: True
) -> WireEvent | None:
    """The event of some types that stands: the one with the greatest key."""
    return max((event for event in events if event["type"] in types and where(event)), key=total_key, default=None)


def time_of(event: WireEvent | None) -> float | None:
    """When it was."""
    return None if event is None else event["time"]


def said(event: WireEvent | None, name: str) -> Any:
    """What it carries under a name."""
    return None if event is None else event["data"].get(name)


def earliest(times: Iterable[float | None]) -> float | None:
    """The first of the times that are known."""
    return min((time for time in times if time is not None), default=None)


def latest(times: Iterable[float | None]) -> float | None:
    """The last of the times that are known."""
    return max((time for time in times if time is not None), default=None)


def operation_key(event: WireEvent) -> tuple[Any, ...]:
    """Holds and drops stand by the number they were given, whatever their epoch."""
    return (event["data"]["operation"], *total_key(event)[1:])


def identity(event: WireEvent | None) -> tuple[str, str, int] | None:
    """Who said it, and which of theirs it is."""
    return None if event is None else (event["source"], event["stream"], event["n"])


# --- attempts -------------------------------------------------------------------------------------------------------


def attempt(events: Sequence[WireEvent]) -> Found:
    """What the events about one attempt say of it: those of its highest epoch, should its number have come again."""
    epochs = {event["epoch"] for event in events}
    events = [event for event in events if event["epoch"] == max(epochs)]
    created, queued = last(events, "AttemptCreated"), last(events, "AttemptQueued")
    started, doubt = last(events, "AttemptStarted"), last(events, "AttemptSuspected", "AttemptRecovered", "AttemptLost")
    suspected, recovered, lost = (
        doubt if doubt is not None and doubt["type"] == f"Attempt{word}" else None
        for word in ("Suspected", "Recovered", "Lost")
    )
    phase, finished = last(events, "PhaseEntered"), last(events, "AttemptFinished")
    staged = last(
        events,
        "OutputsStaged",
        "AttemptFinished",
        where=lambda event: event["data"].get("manifest") is not None,
    )
    stored = last(events, "OutputsStored")
    node = last(events, "AttemptStarted", "AttemptFinished", where=lambda event: "node" in event["data"])
    pilot = last(events, "AttemptCreated", "AttemptStarted", where=lambda event: "pilot" in event["data"])
    names = (
        *("exit_code", "reason", "exit_status", "signal", "peak_memory_bytes", "peak_memory_below_bytes"),
        *("cpu_seconds", "cpu_user_seconds", "cpu_system_seconds", "read_bytes", "written_bytes"),
    )
    return {
        "epoch": max(epochs),
        "reused": int(len(epochs) > 1),
        "site": said(created, "site"),
        "lease_seconds": said(created, "lease_seconds"),
        "replaces": said(created, "replaces"),
        "replica": int(said(created, "replica") or False),
        "remaining_seconds": said(created, "remaining_seconds"),
        "memory_bytes": said(created, "memory_bytes"),
        "wall_seconds": said(created, "wall_seconds"),
        "drop_revision": said(created, "drop_revision") or 0,
        "early": {each["package"]: each["attempt"] for each in said(created, "early") or ()},
        "group": said(created, "group"),
        "created_at": time_of(created),
        "queued_at": time_of(queued),
        "native_id": said(queued, "native_id"),
        "started_at": time_of(started),
        "suspected_at": time_of(suspected),
        "recovered_at": time_of(recovered),
        "lost_at": time_of(lost),
        "lost_reason": lost["data"].get("reason", "platform-failure") if lost is not None else None,
        "phase": said(phase, "phase"),
        "phase_at": time_of(phase),
        "staged_at": time_of(staged),
        "staged_by": identity(staged),
        "finished_at": time_of(finished),
        "finished_by": identity(finished),
        "granted_at": time_of(last(events, "CommitGranted")),
        "stored_at": time_of(stored),
        "copies": len(said(stored, "copies") or ()),
        "failed_copies": len(said(stored, "failed") or ()),
        "disposed_at": time_of(last(events, "OutputsDisposed")),
        "exit_message": said(finished, "exit_message") or None,
        "node": said(node, "node"),
        "pilot": said(pilot, "pilot"),
        **{name: said(finished, name) for name in names},
    }


def ran_since(one: Found) -> float | None:
    """Since when it ran, as far as anything says that it did."""
    leased = one["created_at"] if one["lease_seconds"] is not None else None
    signs = ("phase_at", "suspected_at", "recovered_at", "staged_at")
    for time in (one["started_at"], leased, *(one[sign] for sign in signs)):
        if time is not None:
            return float(time)
    return None


def why_failed(one: Found | None) -> str | None:
    """The reason of an attempt: its own, or what it was lost for, until it has an end."""
    if one is None:
        return None
    ended = one["finished_at"] is not None or one["granted_at"] is not None
    found: str | None = one["reason"] if ended else one["lost_reason"]
    return found


def live_state(number: int, one: Found, others: dict[int, Found]) -> tuple[str, float | None] | None:
    """Where an attempt stands and since when, or None where it can no longer win."""
    if one["finished_at"] is not None:
        since = ran_since(one)
        won = one["exit_code"] == "SUCCESS"
        return ("RUNNING", one["finished_at"] if since is None else since) if won else None
    if any(other["replaces"] == number for other in others.values()) and len(others) > 1:
        return None
    if one["lost_at"] is not None:
        return None
    if ran_since(one) is not None:
        return "RUNNING", ran_since(one)
    return ("SCHEDULED", one["queued_at"]) if one["queued_at"] is not None else ("READY", one["created_at"])


# --- packages -------------------------------------------------------------------------------------------------------


def package(events: Sequence[WireEvent], job: Found, activity: str | None) -> Found:
    """What the events about one package, and what is known of its job, say of it."""
    counting = [event for event in events if event["type"] in ATTEMPT_TYPES | EPOCH_TYPES]
    epoch = max((event["epoch"] for event in counting), default=1)
    present = [event for event in counting if event["epoch"] == epoch and event["type"] in EPOCH_TYPES]
    numbers = sorted({event["attempt"] for event in events if event["type"] in ATTEMPT_TYPES})
    attempts = {
        number: attempt([e for e in events if e["type"] in ATTEMPT_TYPES and e["attempt"] == number])
        for number in numbers
    }
    here = {number: one for number, one in attempts.items() if one["epoch"] == epoch}
    bound = last(present, "Bound", "Unbound")
    reserved = bound if bound is not None and bound["type"] == "Bound" else None
    cancelled, aborted = last(present, "CancelAccepted"), last(present, "Aborted")
    cleared, opened = last(present, "Cleared"), last(present, "Restarted")
    winners = [number for number, one in here.items() if one["granted_at"] is not None]
    shown = here[max(winners or here)] if here else None
    registered = last(events, "PackageRegistered")
    holds = [event for event in events if event["type"] in ("Held", "Released")]
    drops = [event for event in events if event["type"] in ("Dropped", "Restored")]
    held = max(holds, key=operation_key, default=None)
    dropped = max(drops, key=operation_key, default=None)
    running = [ran_since(one) for one in here.values()]
    found: Found = {
        "epoch": epoch,
        "activity": activity if activity is not None else said(registered, "activity") or "",
        "site": shown["site"] if shown is not None else said(reserved, "site"),
        "node": shown["node"] if shown is not None else None,
        "attempt": max(winners or here) if here else None,
        "exit_code": shown["exit_code"] if shown is not None else None,
        "exit_message": shown["exit_message"] if shown is not None else None,
        "reason": why_failed(shown),
        "cause": said(aborted, "cause"),
        "cause_message": said(aborted, "message") or None,
        "upstream": said(aborted, "upstream"),
        "cleared_by": said(cleared, "by"),
        "held": int(held is not None and held["type"] == "Held"),
        "dropped": int(dropped is not None and dropped["type"] == "Dropped"),
        "replicas": said(last(present, "ReplicaWanted"), "replicas") or 0,
        "started": int(any(ever_started(one) for one in attempts.values())),
        "conflict": int(
            len(winners) + (cancelled is not None) + (aborted is not None) > 1
            or any(one["reused"] for one in here.values())
        ),
        "shaped": int(activity is not None),
        # A tag or a note alone may be about a package that was never there.
        "known": activity is not None or bool(counting or holds or drops) or registered is not None,
        "bound_site": said(reserved, "site"),
        "registered_at": time_of(registered),
        "opened_at": time_of(opened),
        "hold_set_at": time_of(held),
        "bound_at": time_of(reserved),
        "cancelled_at": time_of(cancelled),
        "aborted_at": time_of(aborted),
        "cleared_at": time_of(cleared),
        "ready_at": earliest([time_of(reserved), *(one["created_at"] for one in here.values())]),
        "scheduled_at": earliest(one["queued_at"] for one in here.values()),
        "running_at": earliest(running),
        "done_at": shown["granted_at"] if shown is not None else None,
        "updated_at": max(event["time"] for event in events),
        "tags": tags(events),
        "attempts": attempts,
    }
    # A reservation is used up by an attempt that was created after it.
    creations = [e for e in events if e["type"] == "AttemptCreated" and e["attempt"] in here]
    unused = reserved is not None and not any(total_key(each) > total_key(reserved) for each in creations)
    moved = epoch > 1 or bool(attempts) or bound is not None
    found["state"], found["entered_at"] = _state(found, here, job, unused=unused, moved=moved)
    if found["state"] == "ABORTED" and aborted is None:
        found["cause"], found["cause_message"] = job["cause"], job["cause_message"]
    return found


def _state(found: Found, here: dict[int, Found], job: Found, *, unused: bool, moved: bool) -> tuple[str, float | None]:
    """The most advanced state that the facts imply, and since when."""
    live = [standing for number, one in here.items() if (standing := live_state(number, one, here)) is not None]
    implied: dict[str, float | None] = {"SUBMITTED": job["submitted_at"]}
    if moved or job["accepted_at"] is not None or job["epoch"] > 1:
        since = found["opened_at"] if found["opened_at"] is not None else job["accepted_at"]
        ends = [one["lost_at"] if one["finished_at"] is None else one["finished_at"] for one in here.values()]
        implied["WAITING"] = latest(ends) if here else since
    if unused:
        implied["READY"] = found["bound_at"]
    for state in ("READY", "SCHEDULED", "RUNNING"):
        if any(each == state for each, _ in live):
            implied[state] = earliest(time for each, time in live if each == state)
    final = {
        "ABORTED": found["aborted_at"],
        "CANCELLED": found["cancelled_at"],
        "DONE": found["done_at"],
        "CLEARED": found["cleared_at"],
    }
    implied |= {state: time for state, time in final.items() if time is not None}
    if not live and not any(time is not None for time in final.values()):
        # What the whole job came to holds for what has no end of its own and does not run.
        implied |= {"ABORTED": job["aborted_at"]} if job["aborted_at"] is not None else {}
        implied |= {"CANCELLED": job["cancelled_at"]} if job["cancelled_at"] is not None else {}
    state = next(each for each in ADVANCED if each in implied)
    return state, implied[state]


def ever_started(one: Found) -> bool:
    """Whether anything says that an attempt ran."""
    return ran_since(one) is not None or one["finished_at"] is not None or one["granted_at"] is not None


def tags(events: Sequence[WireEvent]) -> dict[str, str]:
    """The values of tags that stand."""
    offers = [
        (total_key(event), name, value)
        for event in events
        for name, value in (
            [(event["data"]["name"], event["data"]["value"])]
            if event["type"] == "Tagged"
            else event["data"].get("tags", {}).items()
            if event["type"] == "JobRegistered"
            else []
        )
    ]
    return {name: value for _, name, value in sorted(offers)}


# --- jobs -----------------------------------------------------------------------------------------------------------


def job(events: Sequence[WireEvent]) -> tuple[Found, dict[int, Found], dict[str, Found]]:
    """What the events about one registered job say of it, of its stages, and of its packages of which anything was heard."""
    own = [event for event in events if "package" not in event]
    found = _job_facts(own, events)
    stages = _stages(own)
    heard = {event["package"] for event in events if "package" in event}
    activities = {place: name for number, stage in stages.items() for place, name in places(stage["shape"], number)}
    packages = {
        place: package([e for e in events if e.get("package") == place], found, activities.get(place))
        for place in heard
    }
    silent = [place for place in activities if place not in heard]
    found |= _histogram(packages, silent, activities, found)
    for number in {int(place.split(".")[0]) for place in heard if packages[place]["known"]} | stages.keys():
        stage = stages.setdefault(number, {"shape": {"items": 0}, "late": 0})
        prefix = f"{number}."
        stage |= _histogram(
            {place: one for place, one in packages.items() if place.startswith(prefix)},
            [place for place in silent if place.startswith(prefix)],
            {place: name for place, name in activities.items() if place.startswith(prefix)},
            found,
        )
    found["late"] = sum(stage["late"] for stage in stages.values())
    found["failed"] = found["aborted"] + found["cancelled"]
    found["state"] = compound(found, found, late=found["late"])
    found["entered_at"] = {
        "SUBMITTED": found["submitted_at"],
        "WAITING": latest([found["accepted_at"], found["opened_at"]]),
        "RUNNING": found["started_at"],
        "CANCELLED": latest([found["cancelled_at"], found["finished_at"]]),
        "CLEARED": found["cleared_at"] if found["cleared_at"] is not None else found["finished_at"],
    }.get(found["state"], latest([found["finished_at"], found["aborted_at"]]))
    return found, stages, packages


def _job_facts(own: Sequence[WireEvent], events: Sequence[WireEvent]) -> Found:
    counting = [event for event in own if event["type"] in JOB_EPOCH_TYPES]
    epoch = max((event["epoch"] for event in counting), default=1)
    present = [event for event in counting if event["epoch"] == epoch]
    registered = last(own, "JobRegistered")
    killed, aborted = last(present, "CancelAccepted"), last(present, "Aborted")
    cleared, opened = last(present, "Cleared"), last(present, "Restarted")
    holds = [event for event in own if event["type"] in ("Held", "Released")]
    held = max(holds, key=operation_key, default=None)
    access = last(own, "AccessSet")
    forecast = last(own, "ForecastMade", "ForecastScored")
    learned = last(own, "HealingLearned")
    leases = [e for e in events if e["type"] == "AttemptCreated" and "lease_seconds" in e["data"]]
    runs = [e for e in events if e["type"] in ATTEMPT_TYPES - NOT_RUNNING]
    ends = [e for e in events if "package" in e and e["type"] in ("CommitGranted", "CancelAccepted", "Aborted")]
    expanded = [event["data"]["stage"] for event in own if event["type"] == "StageExpanded"]
    return {
        "epoch": epoch,
        "name": said(registered, "name"),
        "parent": said(registered, "parent"),
        "owner": said(last(own, "JobRegistered", "OwnerSet"), "owner"),
        "definition": said(registered, "definition"),
        "lists": said(registered, "lists"),
        "expander_version": said(registered, "expander_version"),
        "access": said(access, "rules") or [],
        "forecast": {"made_at": forecast["time"], "made": forecast["data"]}
        if forecast is not None and forecast["type"] == "ForecastMade"
        else None,
        "healing": {"learned_at": learned["time"], "learned": learned["data"]} if learned is not None else None,
        "activities": _activities(own),
        "tags": tags(own),
        "held": int(held is not None and held["type"] == "Held"),
        "stages": max([*expanded, *(len(e["data"]["stages"]) for e in own if e["type"] == "JobRegistered")]),
        "submitted_at": time_of(registered),
        "accepted_at": time_of(last(own, "JobAccepted")),
        "cancelled_at": time_of(killed),
        "aborted_at": time_of(aborted),
        "cause": said(aborted, "cause"),
        "cause_message": said(aborted, "message") or None,
        "cleared_at": time_of(cleared),
        "cleared_by": said(cleared, "by"),
        "opened_at": time_of(opened),
        "started_at": earliest(event["time"] for event in (*leases, *runs)),
        "finished_at": latest(event["time"] for event in ends),
        "updated_at": max(event["time"] for event in events),
    }


def _activities(own: Sequence[WireEvent]) -> dict[str, Found]:
    """The activities that were stopped or opened again: what the operation with the highest number said of each."""
    told = [e for e in own if e["type"] in ("ActivityStopped", "ActivityReopened")]
    found: dict[str, Found] = {}
    for name in {e["data"]["activity"] for e in told}:
        event = max((e for e in told if e["data"]["activity"] == name), key=operation_key)
        data = event["data"]
        found[name] = {
            "stopped": event["type"] == "ActivityStopped",
            "at": event["time"],
            "operation": data["operation"],
        }
        found[name] |= {
            each: data[each] for each in ("failed_attempts", "failed_packages", "message") if data.get(each)
        }
    return found


def knowledge(events: Sequence[WireEvent]) -> dict[str, tuple[float, str]]:
    """What the service learned from all jobs, by name, and when."""
    learned = last(events, "IncidentsLearned")
    return {"incidents": (learned["time"], learned["data"]["learned"])} if learned is not None else {}


def _stages(own: Sequence[WireEvent]) -> dict[int, Found]:
    offers: list[tuple[int, WireEvent, dict[str, Any]]] = []
    for event in own:
        if event["type"] == "JobRegistered":
            offers += [(number, event, shape) for number, shape in enumerate(event["data"]["stages"], 1)]
        elif event["type"] == "StageExpanded":
            offers.append((event["data"]["stage"], event, event["data"]["shape"]))
    stages = {}
    for number in {number for number, _, _ in offers}:
        _, shape = max(
            ((total_key(event), shape) for at, event, shape in offers if at == number), key=lambda offer: offer[0]
        )
        stages[number] = {"shape": shape, "late": int(shape.get("late", False))}
    return stages


def _histogram(packages: dict[str, Found], silent: Sequence[str], shaped: dict[str, str], job: Found) -> Found:
    """Every package counted, one by one, in the state it stands in."""
    if job["cancelled_at"] is not None:
        default = "CANCELLED"
    elif job["aborted_at"] is not None:
        default = "ABORTED"
    else:
        default = "WAITING" if job["accepted_at"] is not None or job["epoch"] > 1 else "SUBMITTED"
    known = [one for one in packages.values() if one["known"]]
    counted = [one for one in known if not one["dropped"]]
    states = [one["state"] for one in counted] + [default] * len(silent)
    return {
        "expected": len(shaped),
        "touched": sum(place in packages for place in shaped),
        "dropped": len(known) - len(counted),
        "started": sum(one["started"] for one in counted),
        "succeeded": sum(one["state"] in ("DONE", "CLEARED") and one["done_at"] is not None for one in counted),
        **{state.lower(): states.count(state) for state in STATES},
    }


def compound(counts: Found, job: Found, *, late: int) -> str:
    """The state of a line, a stage or a job, by the rules in their order."""
    total = {state: counts[state.lower()] for state in STATES}
    over = job["cancelled_at"] is not None or job["aborted_at"] is not None
    # Whatever went beyond SUBMITTED was accepted, even where the word of that was lost.
    accepted = job["accepted_at"] is not None or job["epoch"] > 1 or over or any(total[state] for state in STATES[1:])
    movable = any(total[state] for state in MOVABLE) or (late > 0 and not over)
    nothing = not any(total.values()) and not counts["dropped"] and not over and job["cleared_at"] is None
    rules = (
        (total["RUNNING"] > 0, "RUNNING"),
        (not accepted and not counts["started"], "SUBMITTED"),
        ((movable or nothing) and counts["started"] > 0, "RUNNING"),
        (movable or nothing, "WAITING"),
        (job["cancelled_at"] is not None, "CANCELLED"),
        (job["cleared_at"] is not None, "CLEARED"),
        (total["CLEARED"] > 0 and not total["DONE"] + total["ABORTED"] + total["CANCELLED"], "CLEARED"),
        (counts["succeeded"] == 0, "ABORTED"),
    )
    return next((state for holds, state in rules if holds), "DONE")


def as_json(text: str) -> Any:
    """A value that a row holds as text."""
    return json.loads(text)
