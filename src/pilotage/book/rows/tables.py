"""Every table of the book once: its row, its key and its indexes. Both journals make their SQL from here."""

from __future__ import annotations

import msgspec

from pilotage.book.rows import rows
from pilotage.book.rows.rows import Row

# The rows of notifications: subscriptions, what they are still to be told, and the digests of failures.
#
# They are written in the transaction of the events that caused them, but are no fold of events: a rebuild leaves
# them alone. Nothing here may hold a NUL: what people wrote is in JSON, or was made plain by `notices.plain`.


class SubscriptionRow(Row, kw_only=True, gc=False):
    """Who wants to be told of what, how, and until when."""

    subscription: str
    owner: str  # the user who subscribed
    principal: str = "{}"  # JSON: the groups and scopes that decide which jobs may be told of
    target: str = "packages"  # packages or jobs
    query: str = "all"
    states: str = "[]"  # JSON: entering one of these matters
    attributes: str = "[]"  # JSON: a change of one of these matters
    transport: str = "poll"  # poll, webhook or mail
    address: str = ""
    secret: str = ""  # what webhooks are signed with
    binding: int = 1  # counts how often transport or address were set
    created_at: float = 0.0
    expires_at: float = 0.0
    attempts: int = 0  # tries in a row that failed
    next_at: float = 0.0  # not before then
    fault: str = ""  # why the last try failed


class NoticeRow(Row, kw_only=True, gc=False):
    """One thing a subscriber is still to be told; `position` and `part` are its number, for good."""

    subscription: str
    position: int  # of the last event of the batch that caused it
    part: int  # counts the notices of that batch
    type: str
    job: str
    package: str  # stage.line.n, or empty for a job
    time: float
    data: str  # JSON


class WatchedRow(Row, kw_only=True, gc=False):
    """The values of watched attributes that a subscriber was last told, as digests."""

    subscription: str
    job_id: int
    stage: int
    line: int
    number: int
    told: str  # JSON: attribute → digest


class FailureRow(Row, kw_only=True, gc=False):
    """Failures of one kind in one job that an audience is to be told of; `count` goes on until the job ends."""

    job: str
    audience: str  # researcher, cluster-management or grid-control
    owner: str  # whom a digest for the researcher goes to; empty for operators
    kind: str  # attempt, package, job, or end: then `examples` is the summary of the job
    reason: str
    job_name: str
    count: int
    told: int  # how many of them a mail told of
    first_at: float
    last_at: float
    examples: str  # JSON


class MailRow(Row, kw_only=True, gc=False):
    """The last digest to a recipient, kept until the next one: the same text is sent until it was taken."""

    recipient: str
    number: int
    subject: str
    body: str
    composed_at: float
    sent_at: float | None = None  # taken, or refused for good
    attempts: int = 0
    next_at: float = 0.0
    fault: str = ""


PACKAGE_KEY = ("job_id", "stage", "line", "number")


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """One index beside the primary key; with an attribute, only where that attribute is to be indexed."""

    columns: tuple[str, ...]
    unique: bool = False
    where: str = ""
    attribute: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table: what a row is and what finds it."""

    name: str
    row: type[rows.Row]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order in which a row's values stand."""
        return self.row.__struct_fields__


TABLES: tuple[Table, ...] = (
    Table(
        name="streams",
        row=rows.StreamRow,
        key=("stream_id",),
        indexes=(Index(columns=("source", "stream"), unique=True),),
    ),
    Table(
        name="jobs",
        row=rows.JobRow,
        key=("job_id",),
        indexes=(
            Index(columns=("job",), unique=True),
            Index(columns=("owner", "job"), attribute="owner"),
            Index(columns=("name", "job"), attribute="name"),
            Index(columns=("state", "job"), attribute="state"),
            Index(columns=("parent", "job"), attribute="parent"),
            Index(columns=("submitted_at", "job"), attribute="submitted"),
            Index(columns=("updated_at", "job"), attribute="updated"),
        ),
    ),
    Table(name="stages", row=rows.StageRow, key=("job_id", "stage")),
    Table(name="pilots", row=rows.PilotRow, key=("pilot",), indexes=(Index(columns=("site", "pilot")),)),
    Table(name="nodes", row=rows.NodeRow, key=("node",)),
    Table(name="sites", row=rows.SiteRow, key=("site",)),
    Table(
        name="tags",
        row=rows.TagRow,
        key=(*PACKAGE_KEY, "name"),
        indexes=(Index(columns=("name", "value", *PACKAGE_KEY), attribute="tag"),),
    ),
    Table(
        name="events",
        row=rows.EventRow,
        key=("position",),
        indexes=(
            # Events about a package are found through its row, which is written anyway; an index of them all would
            # cost as much as the events themselves.
            Index(columns=("job_id", "position"), where="stage = 0 AND job_id IS NOT NULL"),
            Index(columns=("stream_id", "n"), where="stage = 0"),
        ),
    ),
    Table(name="parked", row=rows.ParkedRow, key=("stream_id", "n"), indexes=(Index(columns=("job",)),)),
    Table(name="statistics", row=rows.StatisticRow, key=("width_seconds", "slice", "site", "activity")),
    Table(name="subscriptions", row=SubscriptionRow, key=("subscription",)),
    Table(name="notices", row=NoticeRow, key=("subscription", "position", "part")),
    Table(name="watched", row=WatchedRow, key=("subscription", *PACKAGE_KEY)),
    Table(
        name="failures",
        row=FailureRow,
        key=("job", "audience", "owner", "kind", "reason"),
        indexes=(Index(columns=("audience", "owner")),),
    ),
    Table(name="mails", row=MailRow, key=("recipient",)),
)
TABLE_BY_ROW: dict[type[rows.Row], Table] = {table.row: table for table in TABLES}
