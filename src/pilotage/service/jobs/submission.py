"""Prepares a submission for registration, and loads the jobs of a starting service from the book.

Everything that defines a job is stored by content: its canonical definition, its resolved lists, its origin, and the
files it brought along. From these it is always expanded in the same way.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.language import (
    Expansion,
    Report,
    plan_of,
    shapes_of,
    unmade_targets,
)
from pilotage.language import grow as grow_expansion
from pilotage.language.expansion.lists import targets_of
from pilotage.language.named_files import wanted_column
from pilotage.language.recorded_jobs import expand_recorded, read_canonical, recall_job, without_executors
from pilotage.language.text.tree import tree_of
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.events.events import JOB_ID, TAG_NAME, id_beginning
from pilotage.model.events.payloads import JobRegistered, StageExpanded
from pilotage.model.jobs.definition import Definition, plain
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.jobs.run_options import given_options
from pilotage.model.jobs.submission import (
    CAPTURED,
    CUSTOM,
    EXPANDER_VERSION,
    FILE,
    ORIGIN,
    RESOLVED,
    TARGETS,
    Captured,
    Origin,
    ResolvedLists,
    Submission,
    SubmissionAnswer,
)
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JobTree, Journal, NotOurs, ResultsIndex
from pilotage.service import messages
from pilotage.service.jobs.refusals import (
    KnownStores,
    endings_refused,
    others_files_refused,
    refusals,
    refuse_unwritable,
    unreadable_contents,
)
from pilotage.service.works.estimates import earlier_run_times
from pilotage.service.works.reuse import EarlierResult, adopt, declared_done
from pilotage.service.works.site_files import Contents, contents_of

__all__ = [
    "Captured",
    "CheckedSubmission",
    "EarlierResult",
    "Origin",
    "Prepared",
    "Recalled",
    "Submission",
    "SubmissionAnswer",
    "SubmissionError",
    "check_submission",
    "expand_late_stage",
    "prepare",
    "recall",
    "submit_message",
    "unmade",
]

_SHOWN_MAX = 5
_EVENTS_AT_ONCE = 1000
_STAGE_EXPANDED = parse("type = StageExpanded")

_encode = msgspec.json.Encoder(order="deterministic").encode
_names = msgspec.json.Decoder(dict[str, str])
_expanded = msgspec.json.Decoder(StageExpanded)


class SubmissionError(PilotageError):
    """A job was rejected for a reason outside its document."""


class CheckedSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A checked submission and its packages."""

    definition: Definition
    expansion: Expansion
    plan: JobPlan
    origin: Origin
    in_the_way: tuple[str, ...] = ()  # outputs whose names are taken by files that pilotage did not make


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A job ready to be registered: `Submit(job=…, registered=…, plan=…, adopted=…)`."""

    job: str
    registered: JobRegistered
    plan: JobPlan
    expansion: Expansion
    origin: Origin
    adopted: tuple[EarlierResult, ...] = ()
    in_the_way: tuple[str, ...] = ()  # outputs whose names are taken by files that pilotage did not make


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A job loaded from the book: everything a service needs to continue it."""

    definition: Definition
    lists: ResolvedLists
    origin: Origin
    expansion: Expansion
    plan: JobPlan


def prepare(
    submission: Submission,
    *,
    journal: Journal,
    tree: JobTree,
    index: ResultsIndex,
    owner: str,
    executors: Collection[str] = (),
    stores: KnownStores | None = None,
    suffix: Callable[[], str] | None = None,
    contents: Contents | None = None,
) -> Prepared:
    """Check a submission, store its definition and lists, and find earlier results of it.

    Raises `DocumentError` for faults of the document and unsupported fields, `NotOurs` if a file is in the way,
    `StoreError` if results cannot be written, and `SubmissionError` for the rest. `executors` are the names and kinds
    of the sites, `stores` those that files come from and go to; `suffix` makes ids different; `contents` knows what files
    are that packages bring to sites.
    """
    owner = owner or submission.owner
    if not owner:
        raise SubmissionError("the job has no owner", next_step="name its owner")
    checked = check_submission(submission, tree=tree, owner=owner, executors=executors, stores=stores)
    job = _job_id(submission, checked.definition, journal, suffix or _suffix)
    origin, expansion = checked.origin, checked.expansion
    for name, file in origin.captured.items():
        if file.content and journal.content(file.sha256) is None:
            raise SubmissionError(
                "a file that the job brings along was not sent", subject=name, next_step="send its content first"
            )
    for name, sha256 in submission.custom.items():
        if journal.content(sha256) is None:
            raise SubmissionError(
                "custom data of the job was not sent", subject=name, next_step="send its content first"
            )
    adopted = (
        declared_done(expansion)
        if submission.fresh
        else adopt(expansion, origin, tree=tree, index=index, files=contents_of(checked.plan, contents))
    )
    earlier = earlier_run_times(expansion, checked.plan, origin, tree=tree, index=index, adopted=adopted)
    origin = msgspec.structs.replace(origin, earlier_run_times=earlier)
    registered = JobRegistered(
        owner=owner,
        name=checked.definition.job,
        stages=shapes_of(expansion),
        definition=journal.put_content(_encode(plain(checked.definition))),
        lists={
            **_kept(journal, submission.lists, origin),
            **{f"{CUSTOM}{name}": sha256 for name, sha256 in submission.custom.items()},
        },
        expander_version=EXPANDER_VERSION,
        tags=_tags(checked.definition, submission),
    )
    return Prepared(
        job=job,
        registered=registered,
        plan=msgspec.structs.replace(checked.plan, earlier_run_times=earlier),
        expansion=expansion,
        origin=origin,
        adopted=tuple(adopted),
        in_the_way=checked.in_the_way,
    )


def _tags(definition: Definition, submission: Submission) -> dict[str, str]:
    """The tags with which a job is registered: those of its document, and those of its submission, which win."""
    tags = {**definition.provenance.data, **submission.annotations}
    for name in (*tags, *submission.custom):
        if TAG_NAME.fullmatch(name) is None:
            raise SubmissionError(
                "this cannot name an annotation",
                subject=name[:80],
                expected="at most 128 letters, digits, `_`, `.` or `-`, beginning with a letter or `_`",
            )
    return tags


def submit_message(prepared: Prepared, token: int, *, taken: bool) -> messages.Submit:
    """The message that registers a prepared job with the core; `taken` says that the book has its id already."""
    adopted = [
        messages.AdoptedPackage(
            package=each.number, manifest=each.manifest, message=each.message, disposed=each.disposed
        )
        for each in prepared.adopted
    ]
    return messages.Submit(
        token=token,
        job=prepared.job,
        registered=prepared.registered,
        plan=prepared.plan,
        adopted=adopted,
        left_out=sorted(prepared.expansion.left_out),
        taken=taken,
    )


def unmade(prepared: Prepared) -> tuple[str, ...]:
    """The targets of a job that no existing result covers."""
    made = {each.number: [file.name for file in each.manifest] for each in prepared.adopted}
    return tuple(each.target for each in unmade_targets(prepared.expansion, lambda number: made.get(number, ())))


def expansion_of(submission: Submission) -> Expansion:
    """The expansion of a submission; reads and stores nothing. Raises `DocumentError`."""
    file = submission.document or "the document"
    return expand_recorded(_read(submission.definition, file), submission.lists, file)


def check_submission(
    submission: Submission,
    *,
    tree: JobTree,
    owner: str = "",
    executors: Collection[str] = (),
    stores: KnownStores | None = None,
) -> CheckedSubmission:
    """Check a submission and expand it; stores nothing. Raises as `prepare` does.

    Packages that ask for an executor not among `executors` run by default, as in GASW; without any site, none is
    unknown.
    """
    file = submission.document or "the document"
    definition = _read(submission.definition, file)
    faults = refusals(definition, file=file, stores=stores)
    if faults:
        raise DocumentError(faults)
    folder = Path(submission.folder)
    if not folder.is_absolute() or not folder.is_dir():
        raise SubmissionError(
            "the folder of the document does not exist here",
            subject=submission.folder[:200],
            expected="an absolute path to a folder that this service sees",
        )
    if submission.lists.growth:
        raise SubmissionError("the lists belong to a job that ran", subject=definition.job)
    unknown = _unknown_executors(definition, executors) if executors else ()
    expansion = expand_recorded(without_executors(definition, unknown), submission.lists, file)
    if faults := unreadable_contents(expansion, owner=owner or submission.owner, file=file, stores=stores):
        raise DocumentError(faults)
    if faults := others_files_refused(expansion, owner=owner or submission.owner, file=file, stores=stores):
        raise DocumentError(faults)
    origin = Origin(
        folder=submission.folder,
        document=submission.document,
        format=submission.format,
        unknown_executors=unknown,
        captured=submission.captured,
        sent_from=submission.sent_from,
        **given_options(submission),
    )
    refuse_unwritable(expansion, submission.folder)
    plan = _plan_of(expansion, origin)
    if faults := endings_refused(plan, file=file):
        raise DocumentError(faults)
    in_the_way = _not_ours(expansion, submission.folder, tree)
    if in_the_way and not submission.replace:
        raise _in_the_way(in_the_way, submission.folder)
    return CheckedSubmission(
        definition=definition, expansion=expansion, plan=plan, origin=origin, in_the_way=in_the_way
    )


def recall(journal: Journal, row: JobRow) -> Recalled:
    """The job of a row, with every expanded late stage. Raises `SubmissionError` if the book lacks something."""
    found = recall_job(
        row.job,
        definition=row.definition,
        lists=_names.decode(row.lists),
        late=row.late,
        content=lambda sha256: _content(journal, row, sha256),
        growth=lambda: _growth(journal, row),
    )
    return Recalled(
        definition=found.definition,
        lists=found.lists,
        origin=found.origin,
        expansion=found.expansion,
        plan=_plan_of(found.expansion, found.origin),
    )


def _plan_of(expansion: Expansion, origin: Origin) -> JobPlan:
    """The plan of a job, with the options of its submission."""
    return msgspec.structs.replace(
        plan_of(expansion), failures_max=origin.max_failures, earlier_run_times=origin.earlier_run_times
    )


def expand_late_stage(
    journal: Journal,
    expansion: Expansion,
    *,
    stage: int,
    produced: Mapping[int, Sequence[str]],
    owner: str = "",
    stores: KnownStores | None = None,
) -> tuple[Expansion, JobPlan, list[StageExpanded]]:
    """Expand a late stage from the outputs of its producers, and store its lists; raises `DocumentError`.

    Its own event comes first, then those of later stages whose lists became known with it.
    """
    report = Report(expansion.definition.job)
    grown = grow_expansion(expansion, stage, produced, report)
    if grown is None:
        raise DocumentError(report.errors)
    if faults := unreadable_contents(grown, owner=owner, file=expansion.definition.job, stores=stores):
        raise DocumentError(faults)
    if faults := others_files_refused(grown, owner=owner, file=expansion.definition.job, stores=stores):
        raise DocumentError(faults)
    before = expansion.resolved.lists
    more = {key: names for key, names in grown.resolved.lists.items() if key not in before}
    shapes = shapes_of(grown)
    grown_stage = StageExpanded(
        stage=stage, shape=shapes[stage - 1], lists={f"stage-{stage}": journal.put_content(_encode(more))}
    )
    still_late = {late.stage for late in grown.late}
    along = [late.stage for late in expansion.late if late.stage != stage and late.stage not in still_late]
    return grown, plan_of(grown), [grown_stage, *(StageExpanded(stage=each, shape=shapes[each - 1]) for each in along)]


def _read(document: dict[str, Any], file: str) -> Definition:
    """Decode a canonical definition; its faults are reported like those of any document."""
    try:
        tree = tree_of(document)
    except TypeError as fault:
        raise SubmissionError(str(fault), subject=file) from None
    return read_canonical(tree, file)


def _unknown_executors(definition: Definition, executors: Collection[str]) -> tuple[str, ...]:
    packages = (package for stage in definition.stages for line in stage.lines for package in line.packages)
    return tuple(dict.fromkeys(each.executor for each in packages if each.executor and each.executor not in executors))


def plain_outputs(expansion: Expansion) -> Iterator[str]:
    """The known names of all outputs of a job."""
    for block in expansion.blocks:
        for _, output in block.outputs():
            if not block.makes_pattern(output) and not block.package.done:
                yield from wanted_column(expansion, block, output)


def _not_ours(expansion: Expansion, folder: str, tree: JobTree) -> tuple[str, ...]:
    """The outputs of a job whose names are taken by files that pilotage did not make, or that were changed."""
    foreign: list[str] = []
    for block in expansion.blocks:
        for _, output in block.outputs():
            if block.makes_pattern(output) or block.package.done:
                continue
            there = tree.look_up(folder, wanted_column(expansion, block, output))
            if there:
                foreign += [name for name, ours in tree.is_ours(folder, list(there.values())).items() if not ours]
    return tuple(foreign)


def _in_the_way(names: Sequence[str], folder: str) -> NotOurs:
    """The error for outputs that would replace files which pilotage did not make, and the ways out."""
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    one = len(names) == 1
    what = "an output exists already that" if one else f"{len(names)} outputs exist already that"
    changed = "was changed" if one else "were changed"
    return NotOurs(
        f"{what} pilotage did not make, or that {changed} since: {', '.join(names[:_SHOWN_MAX])}{more}",
        subject=folder,
        next_step=(
            f"run it with --replace, which keeps what is there as {names[0]}.~1~{'' if one else ' and so on'}; or move "
            f"{'it' if one else 'them'} away, or give {'the output another name' if one else 'the outputs other names'}"
        ),
    )


def _kept(journal: Journal, lists: ResolvedLists, origin: Origin) -> dict[str, str]:
    """The contents of a job, by role; including the files it brought along, so that they are kept with it."""
    kept = {
        RESOLVED: journal.put_content(_encode(lists)),
        CAPTURED: journal.put_content(_encode(origin.captured)),
        ORIGIN: journal.put_content(_encode(msgspec.structs.replace(origin, captured={}))),
    }
    if targets := targets_of(lists.lists):
        kept[TARGETS] = journal.put_content(_encode(targets))
    files = sorted({file.sha256 for file in origin.captured.values() if file.content})
    kept.update({f"{FILE}{number}": sha256 for number, sha256 in enumerate(files, start=1)})
    return kept


def _job_id(submission: Submission, definition: Definition, journal: Journal, suffix: Callable[[], str]) -> str:
    given = submission.id or definition.id
    if not given:
        return f"{id_beginning(definition.job)}{suffix()}"
    if JOB_ID.fullmatch(given) is None:
        raise SubmissionError(
            "this is not a valid job id",
            subject=given[:80],
            expected="at most 64 letters, digits, `_`, `.` or `-`, beginning with a letter or a digit",
        )
    row = journal.job(given)
    if row is not None and (row.state in FINAL_NAMES or row.place != "live"):
        raise SubmissionError(
            "a job of this id exists already", subject=given, next_step="leave the id out, or choose another one"
        )
    return given


def _suffix() -> str:
    """Six random letters or digits."""
    return base64.b32encode(secrets.token_bytes(4)).decode().lower()[:6]


def _content(journal: Journal, row: JobRow, sha256: str | None) -> bytes:
    found = journal.content(sha256) if sha256 else None
    if found is None:
        raise SubmissionError(
            "the book lacks a part of the job's definition",
            subject=row.job,
            next_step="it cannot continue; submit its document again",
        )
    return found


def _growth(journal: Journal, row: JobRow) -> list[StageExpanded]:
    """How late stages were expanded, in order; if a stage was expanded twice, the later lists count."""
    found: dict[int, StageExpanded] = {}
    after = 0
    while True:
        page = journal.find_events(_STAGE_EXPANDED, after=after, limit=_EVENTS_AT_ONCE, job=row)
        for event in page.items:
            stage = _expanded.decode(event.row.data)
            found[stage.stage] = stage
            after = event.row.position
        if not page.more:
            return list(found.values())
        after = page.scanned_to if page.scanned_to is not None else after
