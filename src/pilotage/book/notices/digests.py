"""Digests of failures: finds them among the events of a batch, counts them by reason, and reports them in one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from pilotage.book.notices.notices import plain, time_text
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import EventRow, JobRow
from pilotage.book.rows.tables import FailureRow
from pilotage.model.events.payloads import AttemptLost
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import FINAL_NAMES, ExitCodeGasw, LossReason, Reason

# Who is notified of a failure without a subscription: a table from reasons to audiences.
#
# After the DØ job definition, section 5: the researcher gets every failure; cluster management also gets platform
# failures, and grid control also crashes and missing outputs; a failure pattern in a log goes to the researcher only.


class Audience(StrEnum):
    """The audiences of digests."""

    RESEARCHER = "researcher"
    CLUSTER_MANAGEMENT = "cluster-management"
    GRID_CONTROL = "grid-control"


OPERATORS = (Audience.CLUSTER_MANAGEMENT, Audience.GRID_CONTROL)

_RESEARCHER = (Audience.RESEARCHER,)
_PLATFORM = (Audience.RESEARCHER, Audience.CLUSTER_MANAGEMENT)
_CRASH = (Audience.RESEARCHER, Audience.CLUSTER_MANAGEMENT, Audience.GRID_CONTROL)

ROUTES: Mapping[Reason, tuple[Audience, ...]] = {
    "platform-failure": _PLATFORM,
    "credential-expired": _PLATFORM,
    "disk-full": _PLATFORM,  # the node's own disk: the researcher cannot fix it
    "segmentation-fault": _CRASH,
    "signal": _CRASH,
    "missing-output": _CRASH,
    "failure-pattern": _RESEARCHER,  # a message in a log
    "looping": _RESEARCHER,
    "application-error": _RESEARCHER,
    "command-not-found": _RESEARCHER,
    "input-checksum": _RESEARCHER,
    "missing-input": _RESEARCHER,
    "out-of-memory": _RESEARCHER,
    "preempted": _RESEARCHER,
    "wall-time": _RESEARCHER,
}
"""The audiences of each reason."""

LOSS_ROUTES: Mapping[LossReason, tuple[Audience, ...]] = {
    "platform-failure": ROUTES["platform-failure"],
    "pilot-killed": _PLATFORM,
    "unheard": _PLATFORM,
    "preempted": ROUTES["preempted"],
    "wall-time": ROUTES["wall-time"],
    "rescheduled": (),
    "dropped": (),
    "outrun": (),
    "healed": (),
    "regrouped": (),
}
"""The audiences of a lost attempt; none if it was cancelled or another attempt was faster."""

_BY_NAME: dict[str, tuple[Audience, ...]] = {
    str(reason): reached for reason, reached in (*ROUTES.items(), *LOSS_ROUTES.items()) if reached
}

NO_FAILURES = frozenset({ExitCodeGasw.SUCCESS.value, ExitCodeGasw.EXECUTION_CANCELED.value})
"""Exit codes that are not failures: success, or cancelled on request."""

NO_LOSSES = frozenset(reason for reason, reached in LOSS_ROUTES.items() if not reached)
"""Loss reasons without an audience."""


def audiences(reason: str) -> tuple[Audience, ...]:
    """The audiences of a reason; one that is not in the table, such as why a package was given up, has the researcher."""
    return _BY_NAME.get(reason, _RESEARCHER)


def reason_of(*, reason: str | None, exit_code: str) -> str:
    """The reason of a failed attempt; if there is none, its exit code in the same spelling."""
    if reason:
        return reason
    if exit_code == ExitCodeGasw.EXECUTION_STALLED.value:
        return "platform-failure"
    return exit_code.lower().replace("_", "-")


EXAMPLES_MAX = 5
JOBS_MAX = 50
END = "end"

_COLUMNS = EventRow.__struct_fields__
_TYPE, _TIME, _DATA = (_COLUMNS.index(name) for name in ("type", "time", "data"))
_JOB_ID, _STAGE = _COLUMNS.index("job_id"), _COLUMNS.index("stage")
_LOST = "AttemptLost"
_TYPES = frozenset({"AttemptFinished", _LOST, "Aborted"})


class _Outcome(msgspec.Struct, frozen=True):
    """The fields of AttemptFinished, AttemptLost or Aborted that a digest needs, in any version."""

    exit_code: str = ""
    exit_message: str = ""
    reason: str | None = None
    node: str | None = None
    cause: str = ""
    message: str = ""


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failure of a group, as an example."""

    package: str = ""
    attempt: int = 0
    site: str = ""
    node: str = ""
    time: float = 0.0
    message: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed or lost attempt, or an aborted package or job."""

    job: JobRow
    kind: str  # attempt, package or job
    reason: str
    example: Example


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended."""

    state: str
    packages: int
    done: int
    failed: int
    cancelled: int


Group = tuple[str, str, str, str, str]
"""job, audience, owner, kind, reason: the key of a row of failures."""

_outcome = msgspec.json.Decoder(_Outcome)
_examples = msgspec.json.Decoder(list[Example])
_summary = msgspec.json.Decoder(Summary)
_encode = msgspec.json.Encoder().encode


def failures(changes: Changes) -> list[Failure]:
    """The failures among the new events of a batch."""
    events = changes.all_events(_TYPES)
    if not events:
        return []
    jobs = {row.job_id: row for row in changes.jobs}
    sites: dict[tuple[int, ...], str] | None = None
    found = []
    for event in events:
        outcome = _outcome.decode(event[_DATA])
        if outcome.exit_code in NO_FAILURES or (event[_TYPE] == _LOST and outcome.reason in NO_LOSSES):
            continue
        if sites is None:
            sites = {(row.job_id, row.stage, row.line, row.number): row.facts.site or "" for row in changes.packages}
        key = tuple(event[_JOB_ID : _JOB_ID + 1]) + tuple(event[_STAGE : _STAGE + 3])
        found.append(_failure(event, outcome, jobs[event[_JOB_ID]], site=sites.get(key, "")))
    return found


def _failure(event: tuple[object, ...], outcome: _Outcome, job: JobRow, *, site: str) -> Failure:
    stage, line, number, attempt = (int(str(value)) for value in event[_STAGE : _STAGE + 4])
    if event[_TYPE] == _LOST:
        kind, reason = "attempt", outcome.reason or AttemptLost().reason
    elif outcome.exit_code:
        kind, reason = "attempt", reason_of(reason=outcome.reason, exit_code=outcome.exit_code)
    else:
        kind, reason = ("package" if stage else "job"), outcome.cause
    example = Example(
        package=PackageId(stage, line, number).dotted if stage else "",
        attempt=attempt,
        site=site,
        node=plain(outcome.node or ""),
        time=float(str(event[_TIME])),
        message=plain(outcome.exit_message or outcome.message),
    )
    return Failure(job=job, kind=kind, reason=plain(reason, length_max=64), example=example)


def groups_of(failure: Failure, *, owners: Mapping[Audience, str | None]) -> Iterator[Group]:
    """The rows that count a failure; `owners` maps each reachable audience to the owner of its rows."""
    for audience in audiences(failure.reason):
        owner = owners.get(audience)
        if owner is not None:
            yield failure.job.job, audience.value, owner, failure.kind, failure.reason


def counted(row: FailureRow | None, group: Group, failure: Failure) -> FailureRow:
    """A row with one more failure."""
    job, audience, owner, kind, reason = group
    example = failure.example
    if row is None:
        row = FailureRow(
            job=job, audience=audience, owner=owner, kind=kind, reason=reason, job_name=plain(failure.job.name), count=0,
            told=0, first_at=example.time, last_at=example.time, examples="[]",
        )  # fmt: skip
    examples = _examples.decode(row.examples)
    # Examples are from failures not reported yet: a second message has others than the first.
    if row.count == row.told:
        examples = []
    if len(examples) < EXAMPLES_MAX:
        row.examples = _encode([*examples, example]).decode()
    row.count += 1
    row.first_at, row.last_at = min(row.first_at, example.time), max(row.last_at, example.time)
    return row


def ended(job: JobRow) -> bool:
    """Tell whether a job has ended."""
    return job.state in FINAL_NAMES


def end_row(job: JobRow, *, owner: str) -> FailureRow:
    """The row that reports the end of a job with failures."""
    summary = Summary(
        state=job.state,
        packages=job.expected,
        done=job.succeeded,
        failed=job.aborted,
        cancelled=job.cancelled,
    )
    at = job.finished_at or job.updated_at
    return FailureRow(
        job=job.job, audience=Audience.RESEARCHER.value, owner=owner, kind=END, reason="", job_name=plain(job.name),
        count=1, told=0, first_at=at, last_at=at, examples=_encode(summary).decode(),
    )  # fmt: skip


def is_new(rows: Iterable[FailureRow]) -> bool:
    """Tell whether there is anything not reported yet."""
    return any(row.count > row.told for row in rows)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A message without its envelope."""

    subject: str
    body: str


def digest(rows: Sequence[FailureRow], *, base_url: str) -> Text:
    """The message about everything in some rows that is not reported yet: a section per job, its end first."""
    jobs: dict[str, list[FailureRow]] = {}
    for row in rows:
        jobs.setdefault(row.job, []).append(row)
    news = {job: group for job, group in jobs.items() if is_new(group)}
    sections = [_section(group, base_url=base_url) for group in list(news.values())[:JOBS_MAX]]
    if len(news) > JOBS_MAX:
        sections.append([f"… and {len(news) - JOBS_MAX:,} more jobs"])
    body = "\n\n".join("\n".join(lines) for lines in sections)
    return Text(subject=f"[pilotage] {_subject(news)}", body=f"{body}\n")


def _subject(news: Mapping[str, Sequence[FailureRow]]) -> str:
    fresh = sum(row.count - row.told for group in news.values() for row in group if row.kind != END)
    ends = [row for group in news.values() for row in group if row.kind == END]
    parts = []
    if fresh:
        parts.append(f"{fresh:,} failure{'' if fresh == 1 else 's'}")
    if len(ends) == 1 and len(news) == 1:
        summary = _summary.decode(ends[0].examples)
        parts.append(f"ended {summary.state}")
    elif ends:
        parts.append(f"{len(ends)} jobs ended")
    where = next(iter(news.values()))[0]
    return f"{', '.join(parts)} in {_called(where) if len(news) == 1 else f'{len(news)} jobs'}"


def _called(row: FailureRow) -> str:
    return f"{row.job_name} ({row.job})" if row.job_name and row.job_name != row.job else row.job


def _section(group: Sequence[FailureRow], *, base_url: str) -> list[str]:
    lines = [f"Job {_called(group[0])}", f"  {base_url}/v1/jobs/{group[0].job}"]
    end = next((row for row in group if row.kind == END), None)
    if end is not None:
        summary = _summary.decode(end.examples)
        lines.append(
            f"  ended {summary.state}: {summary.packages:,} packages, {summary.done:,} done,"
            f" {summary.failed:,} failed, {summary.cancelled:,} cancelled"
        )
    for row in sorted(group, key=lambda row: (row.kind, -row.count, row.reason)):
        if row.kind != END and (row.count > row.told or end is not None):
            lines += _group_lines(row)
    return lines


def _group_lines(row: FailureRow) -> list[str]:
    nouns = {"attempt": ("attempt failed", "attempts failed"), "package": ("package given up", "packages given up")}
    one, many = nouns.get(row.kind, ("job given up", "jobs given up"))
    fresh = row.count - row.told
    count = f"{row.count:,} {one if row.count == 1 else many}"
    since = f" ({fresh:,} new)" if row.told and fresh else ""
    lines = ["", f"  {row.reason}: {count}{since}, {time_text(row.first_at)[:19]}Z to {time_text(row.last_at)[:19]}Z"]
    shown = _examples.decode(row.examples) if fresh else []
    lines += [f"    {_example(each)}" for each in shown]
    if fresh > len(shown):
        lines.append(f"    … and {fresh - len(shown):,} more")
    return lines


def _example(example: Example) -> str:
    parts = []
    if example.package:
        parts.append(example.package + (f" attempt {example.attempt}" if example.attempt else ""))
    where = "/".join(part for part in (example.site, example.node) if part)
    if where:
        parts.append(f"at {where}")
    text = " ".join(parts)
    return f"{text}: {example.message}" if example.message else text


def after_sending(rows: Iterable[FailureRow]) -> tuple[list[FailureRow], list[FailureRow]]:
    """Rows after their message was sent: those that stay, with their counts, and those that are done.

    A researcher's counts continue until the job ends; operators get each failure, not the progress of a job.
    """
    rows = list(rows)
    over = {row.job for row in rows if row.kind == END}
    stay, gone = [], []
    for row in rows:
        if row.audience == Audience.RESEARCHER.value and row.job not in over:
            stay.append(msgspec.structs.replace(row, told=row.count))
        else:
            gone.append(row)
    return stay, gone
