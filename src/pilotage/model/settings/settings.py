"""The settings of the program, as one frozen value: `Settings`, with a section for each part that is set.

These classes are the table: what a file, a variable or a flag may set, the checks, and the reference page are derived
from their fields. What a document may set for one package is another matter, in `pilotage.model.settings.settings`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from pilotage.model.errors import PilotageError, did_you_mean, near_name
from pilotage.model.settings.engine import SKEW_SECONDS, EngineSettings, Order, SelectionSettings

# Where a book is kept: `sqlite:DIR`, `postgresql://…` or the URL of another adapter, and how to show that without its password.

HIDDEN = "***"
_POSTGRESQL = re.compile(r"postgres(?:ql)?://(.*)", re.DOTALL)
_OTHER = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"((?:ssl)?password=)[^&\s]*", re.IGNORECASE)


class BadJournalAddress(PilotageError):
    """The address of a journal cannot be read: write `sqlite:DIR` or `postgresql://USER@HOST/DATABASE`."""


class JournalAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's kind, and what its adapter needs: a folder for SQLite, the whole URL for others.

    `str` and `repr` show it without its password; only `url` has it.
    """

    kind: str  # sqlite, postgresql, or the scheme of a URL that an installed adapter knows
    folder: str = ""
    url: str = ""

    @property
    def shown(self) -> str:
        """As a message may print it."""
        return f"sqlite:{self.folder}" if self.kind == "sqlite" else without_password(self.url)

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"JournalAddress({self.shown!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Rich would print the fields, and with them the password.
        return [("shown", self.shown)]


def parse_journal_address(text: str) -> JournalAddress:
    """Read `sqlite:DIR`, `postgresql://…` or a URL of another scheme; anything else is refused with what was meant."""
    scheme, colon, rest = text.partition(":")
    if any(not character.isprintable() for character in text):
        raise _bad(text, "a journal's address is one line of printable characters")
    if found := _POSTGRESQL.fullmatch(text):
        return JournalAddress(kind="postgresql", url=f"postgresql://{found[1]}")
    if scheme == "sqlite" and colon:
        if rest.startswith("//"):
            # Others count slashes here (`sqlite:///x` is relative for some, absolute for others): ours has none to count.
            raise _bad(text, f"write sqlite:DIR, such as sqlite:/{rest.lstrip('/')} or sqlite:{rest.lstrip('/')}")
        if rest:
            return JournalAddress(kind="sqlite", folder=rest)
        raise _bad(text, "name a folder, such as sqlite:.pilotage")
    if not colon:
        raise _bad(text, f"did you mean 'sqlite:{text}'?" if text else "name a folder, such as sqlite:.pilotage")
    if scheme in ("postgres", "postgresql"):
        raise _bad(text, "write postgresql://USER@HOST:PORT/DATABASE")
    if not near_name(scheme, ("sqlite", "postgresql")) and (other := _OTHER.fullmatch(text)):
        return JournalAddress(kind=other[1], url=text)
    raise _bad(text, did_you_mean(scheme, ("sqlite", "postgresql")))


def without_password(text: str) -> str:
    """A URL with its password hidden, however badly it is written: rather too much is hidden than too little."""
    scheme, separator, rest = text.partition("://")
    # The last @ ends the password even where one was not escaped, and so does nothing before it.
    account, at, host = rest.rpartition("@")
    if separator and at and ":" in account:
        user = account.partition(":")[0]
        text = f"{scheme}://{user}:{HIDDEN}@{host}"
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", text)


def _bad(text: str, next_step: str) -> BadJournalAddress:
    return BadJournalAddress(
        "this is not the address of a journal",
        expected="sqlite:DIR or postgresql://…",
        got=repr(without_password(text)),
        next_step=next_step,
    )


Kind = Literal["text", "whole number", "number", "list of texts"]
Limit = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Few = Annotated[int, Meta(ge=0, le=1000)]
Quota = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Duration = Annotated[float, Meta(ge=0)]
Interval = Annotated[float, Meta(ge=0.1)]
Days = Annotated[float, Meta(ge=0.01)]

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every section: frozen, and made by name."""


class JournalSettings(Section, frozen=True, kw_only=True):
    """Where the book is kept."""

    url: Annotated[str, _doc("`sqlite:DIR`, or `postgresql://USER@HOST:PORT/DATABASE`.")] = "sqlite:.pilotage"

    @property
    def address(self) -> JournalAddress:
        """The address, read."""
        return parse_journal_address(self.url)

    def __repr__(self) -> str:
        return f"JournalSettings(url={without_password(self.url)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Settings are printed in faults and in tests: never with a password.
        return [("url", without_password(self.url))]


LogLevel = Literal["debug", "info", "warning", "error"]


class ServiceSettings(Section, frozen=True, kw_only=True):
    """The HTTP side: where it listens, and how much it takes at once."""

    host: Annotated[str, _doc("The address it listens on.")] = "127.0.0.1"
    port: Annotated[Port, _doc("The port it listens on; 0 takes any free one.")] = 8642
    plain_http: Annotated[
        Literal["loopback", "anywhere"],
        _doc("Where it may be listened without TLS; `anywhere` is for who terminates TLS before it."),
    ] = "loopback"
    address: Annotated[
        str, _doc("The URL by which agents at other sites reach it; none: the one that it says when it starts.")
    ] = ""
    sites: Annotated[
        str, _doc("The file of sites; none: `sites.yaml` beside these settings, or in the user's own settings.")
    ] = ""
    batch_events_max: Annotated[Limit, _doc("Events in one batch; a larger one is refused with 413.")] = 10_000
    batch_bytes_max: Annotated[Limit, _doc("Bytes of one batch; a larger one is refused with 413.")] = 8 * MEBIBYTE
    event_bytes_max: Annotated[Limit, _doc("Bytes of one event; the rest of its batch is kept.")] = 4 * MEBIBYTE
    tag_bytes_max: Annotated[Limit, _doc("Bytes of the value of one tag.")] = 64 * KIBIBYTE
    token_days: Annotated[
        Days, _doc("How long a token of a site's agents lasts; it is renewed while they speak, in its last third.")
    ] = 7.0
    log_level: Annotated[
        LogLevel,
        _doc("What its log tells, at least: `debug`, `info`, `warning` or `error`; `info` has recovery and purges."),
    ] = "info"
    tls_certificate: Annotated[
        str, _doc("The certificate that it shows over TCP, with its chain; none: that of `pilotage tls init`, if any.")
    ] = ""
    tls_key: Annotated[str, _doc("The key of that certificate.")] = ""
    tls_ca: Annotated[
        str, _doc("The authority that clients believe instead of those of their computers; none: theirs will do.")
    ] = ""


_ENGINE = EngineSettings()
_RESTART = _ENGINE.restart


class EngineSection(Section, frozen=True, kw_only=True):
    """How patient a service that runs jobs is: with its agents, with failures, and with sites."""

    # The engine has most of these under the same name, and says their defaults.
    interval_seconds: Annotated[Interval, _doc("How often an agent is heard that has nothing to say.")] = (
        _ENGINE.interval_seconds
    )
    lease_intervals: Annotated[Limit, _doc("An agent that is not heard for so many intervals is suspect.")] = (
        _ENGINE.lease_intervals
    )
    attempts_max: Annotated[Limit, _doc("Attempts of a package that count, where its document does not say.")] = (
        _RESTART.attempts_max
    )
    pilot_kills_max: Annotated[
        Limit, _doc("A package under which so many pilots died waits until somebody releases it.")
    ] = _RESTART.pilot_kills_max
    delay_seconds: Annotated[
        Duration, _doc("The pause before something is tried at the same place again; it doubles each time.")
    ] = _RESTART.delay_seconds
    dead_start_seconds: Annotated[
        Duration,
        _doc("How long a site is left alone after a pilot that never spoke; it doubles with each that follows."),
    ] = _ENGINE.dead_start_seconds
    dead_starts_max: Annotated[
        Few, _doc("After so many in a row nothing more is submitted there for an hour, or until it is woken; 0: never.")
    ] = _ENGINE.dead_starts_max
    agent_idle_seconds: Annotated[Interval, _doc("An agent on this computer ends after so long without work.")] = 300.0
    probes: Annotated[
        Few, _doc("Probes of sites that are under way at once, by themselves; 0: only those asked for.")
    ] = 0
    fairness: Annotated[
        Order,
        _doc("Who goes first among jobs of equal priority: who is expected to be slowed down most, or who came first."),
    ] = _ENGINE.fairness
    waiting_seconds_max: Annotated[
        Duration, _doc("A package that is ready and that no site takes for so long is given up; 0: it waits.")
    ] = _ENGINE.waiting_seconds_max
    owner_running_max: Annotated[
        Quota, _doc("Packages of one owner that run or are reserved at once; 0: as many as there is room for.")
    ] = _ENGINE.owner_running_max
    owner_packages_max: Annotated[
        Quota, _doc("Packages of all unfinished jobs of one owner: a job beyond that is refused; 0: no limit.")
    ] = _ENGINE.owner_packages_max
    flood_packages: Annotated[
        Quota, _doc("So many packages of one activity that failed for good, or alike, hold their job; 0: none does.")
    ] = _ENGINE.flood_packages
    probe_seconds: Annotated[Interval, _doc("No site is probed more often by itself than once in so long.")] = 3600.0
    probe_timeout_seconds: Annotated[
        Interval, _doc("A probe, whoever asked for it, has failed when no pilot came within so long.")
    ] = _ENGINE.probe_timeout_seconds


class BookSettings(Section, frozen=True, kw_only=True):
    """What the book makes of events that come early, or from a wrong clock."""

    skew_seconds: Annotated[
        Duration,
        _doc(
            "An event is flagged whose time is further than this in the future, or whose sender's clock is further off."
        ),
    ] = SKEW_SECONDS


class RetentionSettings(Section, frozen=True, kw_only=True):
    """How long a finished job is kept."""

    sealed_after_seconds: Annotated[
        Duration,
        _doc("Seconds after its last event until a finished job is sealed: its packages are found by naming it."),
    ] = 86_400.0
    cleared_after_days: Annotated[Duration, _doc("Days after its end until a job is CLEARED.")] = 30.0
    purged_after_days: Annotated[Duration, _doc("Days from then until it is purged.")] = 7.0
    parked_days: Annotated[
        Duration, _doc("Days that events wait for their job to be registered; at least one. Then they are dropped.")
    ] = 30.0
    every_seconds: Annotated[Duration, _doc("How often a service sees to it; 0 never.")] = 600.0


class QuerySettings(Section, frozen=True, kw_only=True):
    """What is quick to ask for, and how much an answer holds."""

    indexed: Annotated[
        tuple[str, ...], _doc("Attributes with an index, such as `owner` or `tag.study`, instead of the usual ones.")
    ] = ()
    page_rows: Annotated[Limit, _doc("Rows of a page when the question does not say.")] = 100
    page_rows_max: Annotated[Limit, _doc("Rows of a page at most.")] = 1000


class NotificationSettings(Section, frozen=True, kw_only=True):
    """Subscriptions, and mail to owners and operators."""

    validity_seconds: Annotated[Duration, _doc("How long a subscription lives when it does not say.")] = 7200.0
    validity_seconds_max: Annotated[Duration, _doc("How long it may live until it is renewed.")] = 86_400.0
    digest_seconds: Annotated[Duration, _doc("At most one mail to an owner in this time.")] = 60.0
    smtp_host: Annotated[str, _doc("The mail server; without one no mail is sent.")] = ""
    smtp_port: Annotated[Port, _doc("Its port.")] = 25
    smtp_from: Annotated[str, _doc("The sender of every mail.")] = ""
    cluster_management: Annotated[tuple[str, ...], _doc("Who is told of failures of the platform.")] = ()
    grid_control: Annotated[tuple[str, ...], _doc("Who is told of crashes and missing outputs.")] = ()
    owner_addresses: Annotated[
        tuple[str, ...], _doc("Mail addresses of owners, as `OWNER=ADDRESS`; an owner that is an address needs none.")
    ] = ()
    webhook_networks: Annotated[
        tuple[str, ...],
        _doc("Networks beside the public ones that webhooks may reach, such as `127.0.0.0/8` for this machine."),
    ] = ()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the program. Made once, by `pilotage.model.settings.layers.settle`, and handed down."""

    journal: JournalSettings = JournalSettings()
    service: ServiceSettings = ServiceSettings()
    engine: EngineSection = EngineSection()
    selection: SelectionSettings = SelectionSettings()
    book: BookSettings = BookSettings()
    retention: RetentionSettings = RetentionSettings()
    query: QuerySettings = QuerySettings()
    notifications: NotificationSettings = NotificationSettings()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a setting's name, what it takes, and what it means."""

    section: str
    key: str
    kind: Kind
    default: Any
    description: str
    choices: tuple[str, ...] = ()  # a text must be one of these
    least: float | None = None
    most: float | None = None

    @property
    def name(self) -> str:
        """As faults and flags name it: `service.port`."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PILOTAGE_{self.section}_{self.key}".upper()


SECTIONS: Mapping[str, type[msgspec.Struct]] = {f.name: f.type for f in msgspec.structs.fields(Settings)}


def _rows() -> Iterator[Setting]:
    for section, struct in SECTIONS.items():
        for field in msgspec.structs.fields(struct):
            kind, choices, metas = _unwrap(field.type)
            description = next(meta.description for meta in metas if meta.description)
            yield Setting(
                section=section,
                key=field.name,
                kind=kind,
                default=field.default,
                description=description or "",
                choices=choices,
                least=next((meta.ge for meta in metas if meta.ge is not None), None),
                most=next((meta.le for meta in metas if meta.le is not None), None),
            )


def _unwrap(annotation: Any) -> tuple[Kind, tuple[str, ...], list[Meta]]:
    metas: list[Meta] = []
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metas += more
    if get_origin(annotation) is Literal:
        return "text", get_args(annotation), metas
    return _KINDS[annotation], (), metas


_KINDS: dict[Any, Kind] = {str: "text", int: "whole number", float: "number", tuple[str, ...]: "list of texts"}

SETTINGS: Mapping[str, Setting] = {row.name: row for row in _rows()}
"""Every setting by its name, `section.key`, in the order of the reference page."""


def settings_tables() -> str:
    """Every section with its settings, as Markdown for the reference page."""
    parts = []
    for section, struct in SECTIONS.items():
        parts.append(f"## `[{section}]`\n\n{(struct.__doc__ or '').strip()}\n")
        parts.append("| key | value | default | meaning |\n|---|---|---|---|")
        parts += [
            f"| `{row.key}` | {_accepted(row)} | {_shown(row.default)} | {row.description} |"
            for row in SETTINGS.values()
            if row.section == section
        ]
        parts.append("")
    return "\n".join(parts)


def _accepted(row: Setting) -> str:
    if row.choices:
        return " or ".join(f"`{choice}`" for choice in row.choices)
    if row.most is not None and row.most >= 1e9 and row.least in (None, -1e9):
        return row.kind
    if row.most is not None and row.most < 1e9:
        return f"{row.kind}, {row.least:g} to {row.most:g}"
    return row.kind if row.least is None else f"{row.kind}, at least {row.least:g}"


def _shown(default: Any) -> str:
    match default:
        case tuple():
            return ", ".join(f"`{element}`" for element in default) or "none"
        case str():
            return f"`{default}`" if default else "none"
        case _:
            return f"{default:.15g}"


# The settings of pilotage that a document may override for one package, by `environment: {setting: {…}}`.
#
# The release, its infrastructure, its execution, the job, the package and the binary are levels; the inner one
# wins.

SettingKind = Literal["text", "count", "bytes", "seconds", "yes-no"]


class PackageSetting(msgspec.Struct, frozen=True):
    """One setting: what kind of value it takes, and what it does."""

    kind: SettingKind
    description: str


PACKAGE_SETTINGS: dict[str, PackageSetting] = {
    "account": PackageSetting(
        "text", "The account a batch system charges; refused so far: the entry of a site says it."
    ),
    "attempts_max": PackageSetting("count", "The cap on counted attempts."),
    "cores": PackageSetting("count", "Cores, instead of the document's."),
    "interval_seconds": PackageSetting("seconds", "How often a running attempt reports; refused so far."),
    "keep_failed": PackageSetting("yes-no", "Keep the scratch folder of a failed attempt."),
    "memory_bytes": PackageSetting("bytes", "Memory, instead of the document's."),
    "queue": PackageSetting(
        "text", "The queue or partition of a batch system; refused so far: the entry of a site says it."
    ),
    "replicas_max": PackageSetting(
        "count", "Live attempts of the package, for whatever reason, instead of `selection.max_replicas`."
    ),
    "wall_time_seconds": PackageSetting("seconds", "Wall time, instead of the document's."),
}
