"""Maps each error to its HTTP status and message, in this one place. No traceback and no secret is ever sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from pilotage.agent.service_clock import TIME_FIELD
from pilotage.book.codec import MalformedBatch
from pilotage.book.notices.subscriptions import SubscriptionError
from pilotage.book.query import CursorError, QueryError, QueryTooBroad
from pilotage.model.errors import DocumentError, PilotageError, Problem
from pilotage.ports import (
    BadAddress,
    JournalError,
    JournalFull,
    JournalUnavailable,
    NotOurs,
    StoreError,
    StoreFull,
    UploadConflict,
    WrongContent,
)
from pilotage.ports.record_index import RecordIndexError, UnknownAttribute, UnknownFeed
from pilotage.ports.records import NoRecords, RecordNotReady, RecordStoreError, RecordTaken
from pilotage.ports.store import AccessDenied, CredentialExpired, FileChanged, NotInStore, StoreUnreachable
from pilotage.provenance.assembly import NotADump
from pilotage.reading.access import Forbidden, Unauthenticated
from pilotage.reading.queries import JobPurged, UnknownJob, UnknownPackage
from pilotage.service.errors import NotRunning, OperationRefused, Superseded, UnknownSite
from pilotage.service.http.admission import TooManyConnections
from pilotage.service.journal.record_uploads import NotRegistered
from pilotage.service.journal.writer import WriterBusy, WriterStopped
from pilotage.service.notifications.subscriptions import NotPolled, TooManySubscriptions, UnknownSubscription

RETRY_AFTER_SECONDS = 2


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error: a code for programs, a message for people, and a hint what to do next."""

    code: str
    message: str
    hint: str = ""
    purged_at: float | None = None
    problems: tuple[Problem, ...] = ()  # every fault of a rejected document


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error answer."""

    error: ErrorBody


class BatchTooLarge(PilotageError):
    """A batch has too many events or bytes. Nothing of it was stored; send smaller batches."""


class ClockDoubted(PilotageError):
    """Nothing was stored: the sender's clock may be wrong. The answer has our time; send the same again."""

    retryable = True

    def __init__(self, time: float) -> None:
        """Say what our clock shows."""
        super().__init__("the clock of the sender may be wrong", next_step="send the same again, with our time")
        self.time = time


class NotWell(PilotageError):
    """The service runs but cannot work: the message says why, and what to do."""

    retryable = True


class BadParameter(PilotageError):
    """An unknown parameter; parameters are never ignored silently."""


class BookOnly(PilotageError):
    """The service only serves its book and runs no jobs: start one that does, with `pilotage serve`."""


class Malformed(PilotageError):
    """The body cannot be decoded; nothing was done."""


class TooLarge(PilotageError):
    """The body is larger than allowed."""


class NotARange(PilotageError):
    """The range is outside the file."""


class NotAwaited(PilotageError):
    """Outputs that are no longer expected: their attempt has reported them, or its job is over."""


class UnknownContent(PilotageError):
    """No such file, log or content is stored here."""


class UnknownRecord(PilotageError):
    """There is no record of this job, or none that you may read: it is made some seconds after the end of its job."""


class NoRecordKeeping(PilotageError):
    """The service keeps no records: install `pilotage[provenance]`, and see the setting `provenance.records`."""


class _Status(msgspec.Struct, frozen=True):
    """A status and its code; `message` replaces the error's own where that is not meant for clients."""

    status: int
    code: str
    message: str = ""


# The first class that matches decides, so subclasses come first.
STATUSES: Mapping[type[Exception], _Status] = {
    Unauthenticated: _Status(401, "unauthenticated"),
    Forbidden: _Status(403, "forbidden"),
    UnknownJob: _Status(404, "unknown_job"),
    UnknownPackage: _Status(404, "unknown_package"),
    UnknownSubscription: _Status(404, "unknown_subscription"),
    UnknownSite: _Status(404, "unknown_site"),
    JobPurged: _Status(410, "purged"),
    TooManySubscriptions: _Status(409, "too_many_subscriptions"),
    NotPolled: _Status(409, "not_polled"),
    SubscriptionError: _Status(400, "bad_subscription"),
    BadAddress: _Status(400, "bad_address"),
    QueryTooBroad: _Status(422, "too_broad"),
    QueryError: _Status(400, "bad_query"),
    CursorError: _Status(400, "bad_cursor"),
    BadParameter: _Status(400, "bad_parameter"),
    MalformedBatch: _Status(400, "malformed"),
    Malformed: _Status(400, "malformed"),
    BatchTooLarge: _Status(413, "too_large"),
    TooLarge: _Status(413, "too_large"),
    ClockDoubted: _Status(425, "clock_doubted"),
    NotARange: _Status(416, "not_a_range"),
    NotAwaited: _Status(409, "not_awaited"),
    UnknownContent: _Status(404, "unknown_content"),
    UnknownRecord: _Status(404, "unknown_record"),
    UnknownFeed: _Status(404, "unknown_feed"),
    UnknownAttribute: _Status(400, "bad_attribute"),
    RecordIndexError: _Status(503, "index"),
    NoRecords: _Status(404, "unknown_record"),
    NoRecordKeeping: _Status(409, "no_records"),
    NotRegistered: _Status(409, "not_registered"),
    RecordTaken: _Status(409, "record_taken"),
    RecordNotReady: _Status(409, RecordNotReady.code),
    RecordStoreError: _Status(503, "records"),
    NotADump: _Status(400, "bad_record"),
    BookOnly: _Status(409, "book_only"),
    Superseded: _Status(409, "superseded"),
    NotRunning: _Status(503, "stopping"),
    NotWell: _Status(503, "not_well"),
    DocumentError: _Status(422, "bad_document"),
    NotOurs: _Status(409, "not_ours"),
    UploadConflict: _Status(409, "upload_conflict"),
    WrongContent: _Status(409, "wrong_content"),
    StoreFull: _Status(507, "full"),
    NotInStore: _Status(404, "not_in_store"),
    AccessDenied: _Status(424, "access_denied"),
    CredentialExpired: _Status(424, "credential_expired"),
    FileChanged: _Status(409, "file_changed"),
    StoreUnreachable: _Status(503, "store_unreachable"),
    StoreError: _Status(409, "store"),
    OperationRefused: _Status(409, "refused"),  # or the code of the engine
    WriterBusy: _Status(503, "busy"),
    TooManyConnections: _Status(503, "busy"),
    WriterStopped: _Status(503, "stopping"),
    JournalFull: _Status(507, "full", "the disk is full: nothing of this was stored"),
    JournalUnavailable: _Status(503, "unavailable", "the book cannot be reached: acknowledged events are safe"),
    JournalError: _Status(500, "journal", "the book cannot be used as it is; the log of the service says why"),
}


def error_of(error: Exception) -> tuple[int, ErrorBody]:
    """The status and body of an error; the details of an unexpected one go to the log only."""
    answer = next((answer for kind, answer in STATUSES.items() if isinstance(error, kind)), None)
    if answer is None:
        return 500, ErrorBody(code="internal", message="the service failed to answer this request; its log says why")
    if answer.message:
        return answer.status, ErrorBody(code=answer.code, message=answer.message, hint="try again later")
    if isinstance(error, OperationRefused):
        unknown = error.code.startswith("unknown-")
        return 404 if unknown else answer.status, _error_body(error.code.replace("-", "_"), error)
    return answer.status, _error_body(answer.code, error)


def headers_of(status: int, error: Exception | None = None) -> dict[str, str]:
    """Headers of an error: the authentication scheme, when to try again, or our time."""
    if isinstance(error, ClockDoubted):
        return {TIME_FIELD: f"{error.time:.3f}"}
    if status == 401:
        return {"WWW-Authenticate": 'Bearer realm="pilotage"'}
    return {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (503, 507) else {}


def _error_body(code: str, error: Exception) -> ErrorBody:
    if not isinstance(error, PilotageError):
        return ErrorBody(code=code, message=str(error))
    message = f"{error.subject}: {error.what}" if error.subject else error.what
    message += f"; expected {error.expected}" if error.expected else ""
    message += f", got {error.got}" if error.got else ""
    hint = error.next_step
    if isinstance(error, QueryError) and error.caret:
        hint = f"{error.caret}\n{hint}".rstrip()
    purged_at = error.purged_at if isinstance(error, JobPurged) else None
    if purged_at is not None:
        message += f", on {datetime.fromtimestamp(purged_at, UTC):%Y-%m-%d %H:%M} UTC"
    problems = error.problems if isinstance(error, DocumentError) else ()
    return ErrorBody(code=code, message=message, hint=hint, purged_at=purged_at, problems=problems)
