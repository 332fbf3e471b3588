"""All tables of the book: the row, the key and the indexes of each. Both journals generate their SQL from here."""

from __future__ import annotations

import msgspec

from pilotage.book.rows import rows
from pilotage.book.rows.rows import Row

# The rows of notifications: subscriptions, notices to send, and digests of failures.
#
# They are written in the transaction of their events, but are not derived from them: a rebuild leaves them alone. They
# must not contain a NUL: texts of users are in JSON, or were cleaned by `notices.plain`.


class SubscriptionRow(Row, kw_only=True, gc=False):
    """A subscription: its owner, its query, its transport, and its expiry."""

    subscription: str
    owner: str  # the user who subscribed
    principal: str = "{}"  # JSON: the groups and scopes that decide which jobs it may see
    target: str = "packages"  # packages or jobs
    query: str = "all"
    states: str = "[]"  # JSON: the states whose entry is reported
    attributes: str = "[]"  # JSON: the attributes whose change is reported
    transport: str = "poll"  # poll, webhook or mail
    address: str = ""
    secret: str = ""  # signs webhooks
    binding: int = 1  # how often transport or address were set
    created_at: float = 0.0
    expires_at: float = 0.0
    attempts: int = 0  # failed tries in a row
    next_at: float = 0.0  # earliest time of the next try
    fault: str = ""  # why the last try failed


class NoticeRow(Row, kw_only=True, gc=False):
    """A notice to send; `position` and `part` are its permanent number."""

    subscription: str
    position: int  # of the last event of the batch that caused it
    part: int  # its number within that batch
    type: str
    job: str
    package: str  # stage.line.n, or empty for a job
    time: float
    data: str  # JSON


class WatchedRow(Row, kw_only=True, gc=False):
    """The last reported values of watched attributes, as digests."""

    subscription: str
    job_id: int
    stage: int
    line: int
    number: int
    told: str  # JSON: attribute → digest


class FailureRow(Row, kw_only=True, gc=False):
    """Failures of one kind in one job for an audience; `count` continues until the job ends."""

    job: str
    audience: str  # researcher, cluster-management or grid-control
    owner: str  # the recipient of a researcher's digest; empty for operators
    kind: str  # attempt, package, job, or end: then `examples` is the summary of the job
    reason: str
    job_name: str
    count: int
    told: int  # how many of them were reported
    first_at: float
    last_at: float
    examples: str  # JSON


class MailRow(Row, kw_only=True, gc=False):
    """The last digest to a recipient, kept until the next one: the same text is sent until it is accepted."""

    recipient: str
    number: int
    subject: str
    body: str
    composed_at: float
    sent_at: float | None = None  # accepted, or permanently refused
    attempts: int = 0
    next_at: float = 0.0
    fault: str = ""


PACKAGE_KEY = ("job_id", "stage", "line", "number")


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """An index besides the primary key; with an attribute, only if that attribute is to be indexed."""

    columns: tuple[str, ...]
    unique: bool = False
    where: str = ""
    attribute: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its row, its key and its indexes."""

    name: str
    row: type[rows.Row]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order of a row's values."""
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
    Table(name="cached_files", row=rows.CachedFileRow, key=("site", "digest")),
    Table(name="knowledge", row=rows.KnowledgeRow, key=("name",)),
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
            # Events about a package are found through its row, which is written anyway; an index of them all would cost
            # as much as the events themselves.
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
