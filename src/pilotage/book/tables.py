"""Every table of the book once: its row, its key and its indexes. Both journals make their SQL from here."""

from __future__ import annotations

import msgspec

from pilotage.book import notice_rows, rows

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
    Table(name="subscriptions", row=notice_rows.SubscriptionRow, key=("subscription",)),
    Table(name="notices", row=notice_rows.NoticeRow, key=("subscription", "position", "part")),
    Table(name="watched", row=notice_rows.WatchedRow, key=("subscription", *PACKAGE_KEY)),
    Table(
        name="failures",
        row=notice_rows.FailureRow,
        key=("job", "audience", "owner", "kind", "reason"),
        indexes=(Index(columns=("audience", "owner")),),
    ),
    Table(name="mails", row=notice_rows.MailRow, key=("recipient",)),
)
TABLE_BY_ROW: dict[type[rows.Row], Table] = {table.row: table for table in TABLES}
