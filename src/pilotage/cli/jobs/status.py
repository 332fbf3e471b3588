"""`pilotage status` and `explain`: the state of a job or a package, and the reasons for it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.job_names import find_package_to_show, find_to_show
from pilotage.cli.shared.output import duration, emit, no_service, one_line, plural, table
from pilotage.cli.shared.progress import package_label
from pilotage.cli.shared.server import JobOrPackage, connect_to_read, json_option, server_option
from pilotage.model.answers import parameters_text
from pilotage.model.states import FINAL_NAMES
from pilotage.model.texts import moment, node_moment, size_text

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.model.answers import Explanation, Why

STAGES_SHOWN_MAX = 50
REASONS_SHOWN_MAX = 3
FILES_SHOWN_MAX = 20
STEPS_SHOWN_MAX = 20
TRANSFER_SHOWN_SECONDS = 5.0
"""Shorter transfers are not shown: they are over when somebody reads of them."""
TARGETS_SHOWN_MAX = 10
_COUNTED = ("done", "cleared", "running", "scheduled", "ready", "waiting", "submitted", "aborted", "cancelled")


@click.command()
@click.argument("place", metavar="[JOB|PACKAGE]", required=False)
@json_option
@server_option
def status(place: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Show the state of a job or a package.

    The status of a job groups failures by their cause, and explains why a stuck job is stuck. The status of a package shows
    every attempt, and how and where the last one failed. PACKAGE is JOB/1.2.1, JOB/001/002/001 or JOB/NAME. JOB is an id, or
    a name for the newest job of that name; without JOB, the last job that has not ended, or else the last one.
    """
    from pilotage.client.server import path_of

    with connect_to_read(server, token_file) as connection:
        where = find_to_show(connection, place)
        if where.package is None:
            view = _job(connection, where.job)
            stages = connection.get(path_of("jobs", where.job, "stages"), {"limit": STAGES_SHOWN_MAX})["stages"]
            more = _progress(connection, view)
            if connection.resting and more is not None and view["state"] not in FINAL_NAMES:
                stuck = no_service(connection.ended)
                more |= {"stuck": stuck, "next_step": f"continue it with: pilotage attach {where.job}"}
            moving = _transfers(connection, view)
            found, lines = {"job": view, "stages": stages}, _job_lines(view, stages, more, moving)
            found |= {"progress": more} if more is not None else {}
            found |= {"transfers": moving} if moving else {}
        else:
            found = connection.get(path_of("jobs", where.job, "packages", where.package))
            more = _get_unless_complete(connection, found["package"], where.job, "packages", where.package, "explain")
            if connection.resting and more is not None:
                more = _at_rest(more, where.job, ended=connection.ended)
            lines = _package_lines(
                where,
                found["package"],
                found["attempts"],
                more,
                inputs=found.get("inputs", []),
                utc_offset=found.get("utc_offset", ""),
                healed=found.get("healed", []),
                stale=found.get("stale", []),
            )
            found |= {"explanation": more} if more is not None else {}
    if as_json:
        from pilotage import app

        emit([app.json_text(found)])
    else:
        emit(lines)


def _job(connection: Server, job: str) -> Any:
    """A job from the server; if it was purged, the error says how to see what is kept of it."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        return connection.get(path_of("jobs", job))
    except ServerRefused as error:
        if error.status == 410:
            kept = f'its name, owner and counts are kept: pilotage query --jobs "job={job}"'
            error.next_step = f"{kept}\n  {error.next_step}" if error.next_step else kept
        raise


def _progress(connection: Server, job: dict[str, Any]) -> Any:
    """The progress of a job; of a complete one if a result is stale or its record cannot be made. None if none is told."""
    found = _get_unless_missing(connection, job["id"], "progress")
    told = found is not None and (found.get("stale") or found.get("trouble") or not _is_complete(job))
    return found if told else None


def _get_unless_complete(connection: Server, about: dict[str, Any], *path: str) -> Any:
    """Get a path below a job; None if the job is complete, or the server has no such path."""
    return None if _is_complete(about) else _get_unless_missing(connection, *path)


def _is_complete(about: dict[str, Any]) -> bool:
    """Whether a job or a package is done, with nothing left to tell."""
    well = about["state"] in ("DONE", "CLEARED") and not _failed_count(about)
    return well and not about.get("held") and not about.get("targets")


def _get_unless_missing(connection: Server, *path: str) -> Any:
    """Get a path below a job; None if the server has no such path."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    try:
        return connection.get(path_of("jobs", *path))
    except ServerRefused as error:
        if error.status == 404:
            return None
        raise


def _transfers(connection: Server, job: dict[str, Any]) -> list[dict[str, Any]]:
    """The files that the service has been moving for some seconds, while a job is not over."""
    from pilotage.client import ServerRefused

    if job["state"] in FINAL_NAMES:
        return []
    try:
        moving: list[dict[str, Any]] = connection.get("/v1/transfers")["transfers"]
    except ServerRefused as error:
        if error.status in (404, 409):  # an earlier release, or one that runs no jobs
            return []
        raise
    return [each for each in moving if each["seconds"] >= TRANSFER_SHOWN_SECONDS]


def transfer_lines(moving: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Files on their way, the longest first: how far they are, how fast, and what went wrong last."""
    if moving:
        yield "  files on their way\n"
        yield from table((_transfer(each) for each in moving[:FILES_SHOWN_MAX]), indent="    ")
    if len(moving) > FILES_SHOWN_MAX:
        yield f"    … and {len(moving) - FILES_SHOWN_MAX:,} more\n"


def _transfer(moving: dict[str, Any]) -> tuple[object, ...]:
    file = one_line(moving["file"] or moving["store"])
    total = moving["total_bytes"]
    done = f"{size_text(moving['bytes_done'])} of {size_text(total) if total is not None else '?'}"
    fault = f"try {moving['tries']} after {one_line(moving['fault'])}" if moving["fault"] else ""
    where = f"to {moving['site']}" if moving["kind"] != "store" else f"to {moving['store']}"
    return file, where, done, f"{size_text(round(moving['bytes_per_second']))}/s", fault


def _at_rest(answer: dict[str, Any], job: str, *, ended: str) -> dict[str, Any]:
    """An explanation from the book alone, corrected where the service of this folder does not run."""
    import msgspec

    from pilotage.model.answers import Explanation

    explained: dict[str, Any] = msgspec.to_builtins(
        without_service(msgspec.convert(answer, Explanation), job, ended=ended)
    )
    return explained


def _job_lines(
    job: dict[str, Any], stages: list[dict[str, Any]], progress: Any, moving: Sequence[dict[str, Any]]
) -> Iterator[str]:
    # The last attempt may have ended long before the job does, so an unfinished job has no end time.
    finished = ("finished",) if job["state"] in FINAL_NAMES else ()
    yield f"{one_line(job['id'])}: {_state(job)}\n"
    facts = [
        ("name", job["name"]),
        ("owner", job["owner"]),
        ("parent", job["parent"]),
        ("targets", _targets(job.get("targets") or [])),
        ("packages", _histogram(job)),
        ("forecast", _forecast(job, progress)),
        ("why", job["cause"]),
        ("cleared", f"by {job['cleared_by']}" if job["cleared_by"] else None),
        ("epoch", job["epoch"] if job["epoch"] > 1 else None),
        ("place", job["place"] if job["place"] != "live" else None),
        *_times(job, ("submitted", "accepted", "started", *finished, "updated")),
        ("tags", _tags(job["tags"])),
    ]
    yield from _facts(facts)
    if len(stages) > 1:
        yield "  stages\n"
        rows = ((stage["stage"], _stage_state(stage), _stage_packages(stage)) for stage in stages)
        yield from table(rows, indent="    ")
        if job["stages"] > len(stages):
            yield f"    … and {job['stages'] - len(stages):,} more\n"
    yield from transfer_lines(moving)
    yield from _trouble_lines(progress)
    if bad := _failed_count(job):
        words = f"job={job['id']} and state in (ABORTED, CANCELLED)"
        see = "see it" if bad == 1 else "see them"
        failed, cancelled = job["counts"]["aborted"], job["counts"]["cancelled"]
        what = f"{plural(failed or cancelled, 'package')} {'failed' if failed else 'cancelled'}"
        what += f", {cancelled:,} cancelled" if failed and cancelled else ""
        yield f'  {what}; {see} with: pilotage query "{one_line(words)}"\n'


def _forecast(job: dict[str, Any], progress: Any) -> str | None:
    """When a job will be over; a job that nothing can move has no end in sight."""
    if job.get("forecast") is None or progress is None or progress.get("stuck") or job["held"]:
        return None
    import msgspec

    from pilotage.cli.shared.progress import end_text, holds
    from pilotage.model.answers import EndForecast

    forecast, now = msgspec.convert(job["forecast"], EndForecast), progress["now"]
    return f"{end_text(forecast, now=now)}, at {moment(forecast.median_at)}" if holds(forecast, now=now) else None


def _trouble_lines(found: Any) -> Iterator[str]:
    """Why the job is stuck or delayed, and its failures, grouped by cause."""
    if found is None:
        return
    import msgspec

    from pilotage.cli.shared.progress import failure_lines, stale_lines, unmade_lines
    from pilotage.model.answers import Progress

    progress = msgspec.convert(found, Progress)
    if progress.stuck:
        yield f"  nothing can move: {one_line(progress.stuck)}\n"
        if progress.next_step:
            yield f"    next: {one_line(progress.next_step)}\n"
    if progress.trouble:
        yield f"  trouble: {one_line(progress.trouble)}\n"
    yield from (f"  {line}" for line in failure_lines(progress))
    yield from (f"  {line}" for line in unmade_lines(progress))
    yield from (f"  {line}" for line in stale_lines(progress))


def _package_lines(
    where: JobOrPackage,
    package: dict[str, Any],
    attempts: list[dict[str, Any]],
    explanation: Any,
    *,
    inputs: list[dict[str, Any]],
    utc_offset: str = "",
    healed: Sequence[dict[str, Any]] = (),
    stale: Sequence[str] = (),
) -> Iterator[str]:
    words = package.get("words") or {}
    yield f"{one_line(where)}: {_state(package)}\n"
    facts = [
        ("name", words.get("name")),
        ("given", parameters_text(words.get("parameters", {}))),
        ("command", words.get("command")),
        ("path", package["path"]),
        ("activity", package["activity"]),
        ("site", package["site"]),
        ("node", package["node"]),
        ("exit", package["exit_code"]),
        ("message", package["exit_message"]),
        ("reason", package["reason"]),
        ("used", ", ".join(_used(next((each for each in attempts if each["attempt"] == package["attempt"]), {})))),
        ("why", package["cause"] or package["cleared_by"]),
        ("epoch", package["epoch"] if package["epoch"] > 1 else None),
        ("stale", f"read {', '.join(stale)}, made again since with other contents" if stale else None),
        ("heard", None if package["heard"] else "nothing yet"),
        ("inferred", ", ".join(package["inferred"])),
        ("conflict", "the book has contradictory events of it" if package["conflict"] else None),
        *_times(package, ("ready", "scheduled")),
        *((name, node_moment(package[f"{name}_at"], utc_offset=utc_offset)) for name in ("running", "done")),
        *_times(package, ("aborted", "cancelled", "cleared", "updated")),
        ("tags", _tags(package["tags"])),
    ]
    yield from _facts(facts)
    if attempts:
        yield "  attempts\n"
        yield from table(map(_attempt, attempts), indent="    ")
    yield from _healed_lines(where.job, healed)
    yield from _file_lines(inputs, attempts, package["attempt"])
    yield from _binary_lines(attempts, package["attempt"])
    yield from _card_lines(where, package, attempts, explanation)
    if explanation is not None and package["state"] not in FINAL_NAMES:
        start_at, end_at = explanation.get("expected_start_at"), explanation.get("expected_end_at")
        yield from _expected_lines(start_at, end_at, utc_offset=utc_offset)
    # Only the service that runs a job can explain it.
    reasons = [why for why in (explanation or {}).get("reasons", ()) if why["code"] not in ("elsewhere", "healed")]
    if reasons and package["state"] not in FINAL_NAMES:
        for why in reasons[:REASONS_SHOWN_MAX]:
            yield f"  {one_line(why['message'])}\n"
        yield f"  more: pilotage explain {one_line(where)}\n"


def _healed_lines(job: str, steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What healing did to a package, and where its reasons are."""
    if not steps:
        return
    yield "  healing\n"
    rows = (
        (
            f"decision {step['decision']}",
            moment(step["at"]),
            f"gave up attempt {step['attempt']}" if step.get("attempt") else "wanted one more attempt",
            step.get("message", ""),
        )
        for step in steps[-STEPS_SHOWN_MAX:]
    )
    yield from table(rows, indent="    ")
    yield f"    why: pilotage healing {one_line(job)}\n"


def _card_lines(
    where: JobOrPackage, package: dict[str, Any], attempts: list[dict[str, Any]], explanation: Any
) -> Iterator[str]:
    """The failure card of a package whose last attempt failed, or that was given up."""
    last = attempts[-1] if attempts else {}
    failed = last.get("exit_code") not in (None, "SUCCESS") or last.get("lost_at") is not None
    if package["state"] in ("DONE", "CLEARED", "CANCELLED") or not (failed or package["state"] == "ABORTED"):
        return
    import msgspec

    from pilotage.cli.shared.progress import card_lines
    from pilotage.model.answers import FailureCard, PackageWords

    again = package["state"] not in FINAL_NAMES
    until = next((why["until"] for why in (explanation or {}).get("reasons", ()) if why.get("until")), None)
    look = f"pilotage logs {where} --attempt {last['attempt']}" if last else f"pilotage explain {where}"
    card = FailureCard(
        package=package["id"],
        path=package["path"],
        words=msgspec.convert(package.get("words"), PackageWords | None),
        attempt=last.get("attempt"),
        cause=package["cause"] or "",
        reason=last.get("reason") or last.get("lost_reason") or "",
        exit_code=last.get("exit_code") or "",
        exit_message=last.get("exit_message") or "",
        exit_status=last.get("exit_status"),
        signal=last.get("signal"),
        peak_memory_bytes=last.get("peak_memory_bytes"),
        peak_memory_below_bytes=last.get("peak_memory_below_bytes"),
        site=last.get("site") or "",
        node=last.get("node") or "",
        again=again,
        again_at=until if again else None,
        next_step=look,
    )
    yield "  failure\n"
    yield from card_lines(where.job, card, indent="    ")


def _file_lines(inputs: list[dict[str, Any]], attempts: list[dict[str, Any]], counted: int | None) -> Iterator[str]:
    """The files that a package reads, and those that its counting attempt made."""
    made: list[dict[str, Any]] = next((each["manifest"] for each in attempts if each["attempt"] == counted), [])
    files = [*inputs, *made]
    if files:
        yield "  files\n"
        yield from table(map(_file, files[:FILES_SHOWN_MAX]), indent="    ")
        if len(files) > FILES_SHOWN_MAX:
            yield f"    and {len(files) - FILES_SHOWN_MAX:,} more\n"


def _file(file: dict[str, Any]) -> tuple[object, ...]:
    origin = {"package": "of", "job": "of job", "locator": "from"}.get(file.get("origin", ""), file.get("origin", ""))
    return (
        file.get("direction", "out"),
        file["name"],
        size_text(file["size_bytes"]) if file["size_bytes"] is not None else "",
        file["sha256"][:12] if file["sha256"] else "",
        f"{origin} {file.get('source', '')}".strip(),
    )


def _binary_lines(attempts: list[dict[str, Any]], counted: int | None) -> Iterator[str]:
    """The binaries of the counting attempt, if there are several: when each ran, and how it ended."""
    binaries: list[dict[str, Any]] = next(
        (each.get("binaries", []) for each in attempts if each["attempt"] == counted), []
    )
    if binaries:
        from pilotage.cli.shared.progress import binary_lines

        yield from binary_lines(counted, binaries)


def _used(attempt: dict[str, Any]) -> Iterator[str]:
    """The measured resources of an attempt."""
    from pilotage.cli.shared.progress import peak_texts

    for name in ("user", "system"):
        if attempt.get(f"cpu_{name}_seconds") is not None:
            yield f"{duration(round(attempt[f'cpu_{name}_seconds'], 3))} {name}"
    yield from peak_texts(attempt.get("peak_memory_bytes"), below_bytes=attempt.get("peak_memory_below_bytes"))
    for name in ("read", "written"):
        if attempt.get(f"{name}_bytes") is not None:
            yield f"{size_text(attempt[f'{name}_bytes'])} {name}"


def _attempt(attempt: dict[str, Any]) -> tuple[object, ...]:
    begun, ended = attempt["started_at"], attempt["finished_at"]
    took = duration(round(ended - begun, 3)) if begun is not None and ended is not None and ended >= begun else ""
    doubts = {"lost": attempt["lost_at"], "suspected": attempt["suspected_at"]}
    doubt = next((word for word, at in doubts.items() if at is not None), "")
    how = attempt["exit_code"] or doubt or attempt["phase"] or ""
    return (
        attempt["attempt"],
        f"epoch {attempt['epoch']}" if attempt["epoch"] > 1 else None,
        attempt["site"],
        attempt["node"],
        moment(begun if begun is not None else attempt["created_at"]),
        took,
        f"{how}{' (granted)' if attempt['granted'] else ''}".strip(),
        attempt["reason"] if attempt["exit_code"] else attempt["reason"] or attempt["lost_reason"],
        (attempt["exit_message"] or "").partition("\n")[0],
    )


def _state(view: dict[str, Any]) -> str:
    flags = [word for word in ("held", "dropped") if view.get(word)]
    if view.get("held") and view["state"] == "RUNNING" and not view.get("counts", {"running": 1})["running"]:
        return "held, and nothing of it runs"  # the state RUNNING only means that the job has started
    # A job can be DONE even if packages of it failed.
    if _failed_count(view) and view["state"] in FINAL_NAMES:
        failed, cancelled = view["counts"]["aborted"], view["counts"]["cancelled"]
        flags += [f"{failed:,} failed"] if failed else []
        flags += [f"{cancelled:,} cancelled"] if cancelled and view["state"] != "CANCELLED" else []
    return f"{view['state']} ({', '.join(flags)})" if flags else str(view["state"])


def _stage_state(stage: dict[str, Any]) -> str:
    """The state of a stage; none if all its packages were dropped."""
    counts = stage["counts"]
    gone = counts["dropped"] and not stage["late"] and not any(counts[word] for word in _COUNTED)
    gone = gone or stage.get("left_out")
    return "-" if gone else str(stage["state"])


def _stage_packages(stage: dict[str, Any]) -> str:
    if stage.get("left_out"):
        return "left out: no target needs it"
    return "not known yet" if stage["late"] else _histogram(stage)


def _targets(targets: list[str]) -> str:
    more = f" and {len(targets) - TARGETS_SHOWN_MAX:,} more" if len(targets) > TARGETS_SHOWN_MAX else ""
    return f"{', '.join(targets[:TARGETS_SHOWN_MAX])}{more}"


def _failed_count(view: dict[str, Any]) -> int:
    """The number of failed and cancelled packages of a job; 0 for a package."""
    counts: dict[str, int] = view.get("counts") or {}
    return (view.get("failed") or 0) + counts.get("cancelled", 0)


def _histogram(view: dict[str, Any]) -> str:
    counts = view["counts"]
    parts = [f"{counts[word]:,} {word.upper()}" for word in _COUNTED if counts[word]]
    dropped = f"; {counts['dropped']:,} dropped" if counts["dropped"] else ""
    total = sum(counts[word] for word in _COUNTED)
    return (f"{total:,}: {', '.join(parts)}" if parts else "none") + dropped


def _times(view: dict[str, Any], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((name, moment(view[f"{name}_at"])) for name in names)


def _tags(tags: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(tags.items()))


def _facts(facts: Iterable[tuple[str, object]]) -> Iterator[str]:
    return table([fact for fact in facts if fact[1] not in (None, "")], indent="  ")


# `pilotage explain`: why a package waits, where it runs, or how it ended.

_NAMED_MAX = 5
_POSSIBLE_SITE = ("site-unknown", "site-hibernated", "site-avoided", "site-closed", "site-full", "next")


@click.command()
@click.argument("package", metavar="[PACKAGE]", required=False)
@json_option
@server_option
def explain(package: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Explain why a package waits, where it runs, or how it ended.

    PACKAGE is JOB/1.2.1, JOB/001/002/001 or JOB/NAME, where JOB is an id, or a name for the newest job of that name; 1.2.1
    alone is a package of the last job. For a job with a single package, JOB is enough. The most important reason comes
    first.
    """
    from pilotage.client.jobs import Jobs

    with connect_to_read(server, token_file) as connection:
        where, dotted = find_package_to_show(connection, package)
        explanation = Jobs(connection).explain(where.job, dotted)
        if connection.resting:
            explanation = without_service(explanation, where.job, ended=connection.ended)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(explanation))])
    else:
        emit(explanation_lines(where, explanation))


why = copy.copy(explain)
"""`pilotage why`: an alias of `explain`, which `--help` does not list."""
why.name, why.hidden = "why", True


def without_service(explanation: Explanation, job: str, *, ended: str) -> Explanation:
    """An explanation from the book alone, with the reason that no service runs in place of that of a foreign job."""
    import msgspec

    known = {"message": f"{no_service(ended)}: nothing of it starts", "code": "no-service"}
    step = f"continue it with: pilotage attach {job}"
    reasons = (
        msgspec.structs.replace(why, **known, next_step=step) if why.code == "elsewhere" else why
        for why in explanation.reasons
    )
    return msgspec.structs.replace(explanation, reasons=tuple(reasons))


def explanation_lines(where: JobOrPackage, explanation: Explanation) -> Iterator[str]:
    """An explanation as lines of text, the most important reason first."""
    import msgspec

    epoch = f", epoch {explanation.epoch}" if explanation.epoch > 1 else ""
    yield f"{one_line(package_label(where.job, explanation.package, explanation.words))}: {one_line(explanation.standing)}{epoch}\n"
    if explanation.words is not None and explanation.words.command:
        yield f"  $ {one_line(explanation.words.command)}\n"
    yield from _actual_lines(explanation)
    yield from _expected_lines(
        explanation.expected_start_at, explanation.expected_end_at, utc_offset=explanation.utc_offset
    )
    for why in _in_order(explanation.reasons):
        yield f"  {one_line(_reason(why))}\n"
        if why.next_step:
            yield f"    next: {one_line(why.next_step)}\n"
    if explanation.binaries:
        from pilotage.cli.shared.progress import binary_lines

        yield from binary_lines(explanation.ended, [msgspec.to_builtins(each) for each in explanation.binaries])


def _actual_lines(explanation: Explanation) -> Iterator[str]:
    """When a package started and ended, if it has."""
    times = (("started", explanation.started_at), ("ended", explanation.ended_at))
    known = [f"{word} {node_moment(at, utc_offset=explanation.utc_offset)}" for word, at in times if at is not None]
    if known:
        yield f"  {' and '.join(known)}\n"


def _expected_lines(start_at: float | None, end_at: float | None, *, utc_offset: str) -> Iterator[str]:
    """When a package is expected to start and to end, until it has; by the clocks of its node, too, once it has one."""
    times = (("start", start_at), ("end", end_at))
    known = [f"{word} {node_moment(at, utc_offset=utc_offset)}" for word, at in times if at is not None]
    if known:
        yield f"  expected to {' and to '.join(known)}\n"


def _in_order(reasons: Sequence[Why]) -> list[Why]:
    """The reasons in order: sites that could run it before those that never can; equal reasons joined in one line."""
    import msgspec

    unable: dict[str, list[str]] = {}
    for why in reasons:
        if why.code == "site-unable":
            unable.setdefault(why.message, []).append(why.subject)
    positions = [at for at, why in enumerate(reasons) if why.code == "site-unable" or why.code in _POSSIBLE_SITE]
    merged: list[Why] = []
    for at, why in enumerate(reasons):
        if why.code != "site-unable":
            merged.append(why)
        if unable and at == positions[-1]:
            first = next(each for each in reasons if each.code == "site-unable")
            for message, names in unable.items():
                merged.append(msgspec.structs.replace(first, message=f"{_listed(names)}: {message}", subject=names[0]))
    return merged


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _reason(why: Why) -> str:
    times = [f"{word} {moment(at)}" for word, at in (("since", why.since), ("until", why.until)) if at is not None]
    more = [f"{why.count:,} in all"] if why.code == "waits-for-package" and why.count > 1 else []
    beside = ", ".join([*times, *more])
    return f"{why.message} ({beside})" if beside else why.message
