"""The rows of notifications: subscriptions, what they are still to be told, and the digests of failures.

They are written in the transaction of the events that caused them, but are no fold of events: a rebuild leaves them alone.
Nothing here may hold a NUL: what people wrote is in JSON, or was made plain by `notices.plain`.
"""

from __future__ import annotations

from pilotage.book.rows import Row


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
