"""The settings of the program, as one frozen value: `Settings`, with a section for each part.

These classes are the table: the names in files, variables and flags, the checks, and the reference page are derived from
their fields. The settings that a document may override for one package are at the end of this module.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from pilotage.model.errors import PilotageError, did_you_mean, near_name
from pilotage.model.settings.engine import (
    SKEW_SECONDS,
    EngineSettings,
    Healing,
    HealingSettings,
    Order,
    Provisioning,
    SelectionSettings,
)
from pilotage.model.settings.stores import FilesSettings, StoreSettings

# The address of a journal: `sqlite:DIR`, `postgresql://…` or the URL of another adapter; shown without its password.

HIDDEN = "***"
_POSTGRESQL = re.compile(r"postgres(?:ql)?://(.*)", re.DOTALL)
_OTHER = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"((?:ssl)?password=)[^&\s]*", re.IGNORECASE)


class BadJournalAddress(PilotageError):
    """The address of a journal cannot be read: write `sqlite:DIR` or `postgresql://USER@HOST/DATABASE`."""


class JournalAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a journal, and what its adapter needs: a folder for SQLite, the whole URL for others.

    `str` and `repr` show it without its password; only `url` has it.
    """

    kind: str  # sqlite, postgresql, or the scheme of a URL that an installed adapter knows
    folder: str = ""
    url: str = ""

    @property
    def shown(self) -> str:
        """As shown in messages."""
        return f"sqlite:{self.folder}" if self.kind == "sqlite" else without_password(self.url)

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"JournalAddress({self.shown!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Rich would print the fields, and with them the password.
        return [("shown", self.shown)]


def parse_journal_address(text: str) -> JournalAddress:
    """Read `sqlite:DIR`, `postgresql://…` or a URL of another scheme; anything else is refused with a suggestion."""
    scheme, colon, rest = text.partition(":")
    if any(not character.isprintable() for character in text):
        raise _bad(text, "a journal's address is one line of printable characters")
    if found := _POSTGRESQL.fullmatch(text):
        return JournalAddress(kind="postgresql", url=f"postgresql://{found[1]}")
    if scheme == "sqlite" and colon:
        if rest.startswith("//"):
            # Others count slashes here (`sqlite:///x` is relative for some, absolute for others); ours has none to count.
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
    """A URL with its password hidden, even if it is badly written: rather too much is hidden than too little."""
    scheme, separator, rest = text.partition("://")
    # The last @ ends the password, even if an earlier one was not escaped.
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
Share = Annotated[float, Meta(ge=0, le=1)]
Days = Annotated[float, Meta(ge=0.01)]

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every section: frozen, and made by name."""


class JournalSettings(Section, frozen=True, kw_only=True):
    """Where the book is stored."""

    url: Annotated[str, _doc("`sqlite:DIR`, or `postgresql://USER@HOST:PORT/DATABASE`.")] = "sqlite:.pilotage"

    @property
    def address(self) -> JournalAddress:
        """The parsed address."""
        return parse_journal_address(self.url)

    def __repr__(self) -> str:
        return f"JournalSettings(url={without_password(self.url)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Settings are printed in error messages and tests: never with a password.
        return [("url", without_password(self.url))]


LogLevel = Literal["debug", "info", "warning", "error"]


class ServiceSettings(Section, frozen=True, kw_only=True):
    """The HTTP server: where it listens, and its limits."""

    host: Annotated[str, _doc("The address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, _doc("The port to listen on; 0: any free one.")] = 8642
    plain_http: Annotated[
        Literal["loopback", "anywhere"],
        _doc("Where it may listen without TLS; `anywhere` is for a proxy in front that terminates TLS."),
    ] = "loopback"
    address: Annotated[str, _doc("The URL for agents at other sites; none: the one that it prints at its start.")] = ""
    sites: Annotated[
        str, _doc("The file of sites; none: `sites.yaml` beside these settings, or in the user's own settings.")
    ] = ""
    batch_events_max: Annotated[Limit, _doc("Events in one batch; a larger one is refused with 413.")] = 10_000
    batch_bytes_max: Annotated[Limit, _doc("Bytes of one batch; a larger one is refused with 413.")] = 8 * MEBIBYTE
    event_bytes_max: Annotated[Limit, _doc("Bytes of one event; the rest of its batch is kept.")] = 4 * MEBIBYTE
    tag_bytes_max: Annotated[Limit, _doc("Bytes of the value of one tag.")] = 64 * KIBIBYTE
    content_bytes_max: Annotated[
        Limit, _doc("Bytes of one file that is sent with a job; a larger one is refused with 413.")
    ] = 1024 * 1024 * MEBIBYTE
    content_days: Annotated[Days, _doc("Days that a file which was sent is kept if no job uses it.")] = 7.0
    token_days: Annotated[
        Days, _doc("Lifetime of the token of a site's agents; active agents renew it in its last third.")
    ] = 7.0
    log_level: Annotated[
        LogLevel,
        _doc(
            "The lowest level in its log: `debug`, `info`, `warning` or `error`; `info` includes recovery and purges."
        ),
    ] = "info"
    tls_certificate: Annotated[
        str, _doc("The certificate of the TCP server, with its chain; none: that of `pilotage tls init`, if any.")
    ] = ""
    tls_key: Annotated[str, _doc("The key of that certificate.")] = ""
    tls_ca: Annotated[
        str, _doc("The authority that clients trust instead of those of their system; none: those of their system.")
    ] = ""


_ENGINE = EngineSettings()
_RESTART = _ENGINE.restart


class EngineSection(Section, frozen=True, kw_only=True):
    """Time limits and thresholds of a service that runs jobs, for agents, failures and sites."""

    # Most of these have the same name in the engine, which defines their defaults.
    interval_seconds: Annotated[Interval, _doc("Time between two exchanges of an idle agent.")] = (
        _ENGINE.interval_seconds
    )
    lease_intervals: Annotated[Limit, _doc("Silent intervals after which an agent is suspect.")] = (
        _ENGINE.lease_intervals
    )
    attempts_max: Annotated[Limit, _doc("Counted attempts of a package, unless its document sets them.")] = (
        _RESTART.attempts_max
    )
    pilot_kills_max: Annotated[
        Limit, _doc("Pilots that died while running a package, after which it is held until released.")
    ] = _RESTART.pilot_kills_max
    delay_seconds: Annotated[Duration, _doc("The pause before a retry at the same site; it doubles each time.")] = (
        _RESTART.delay_seconds
    )
    dead_start_seconds: Annotated[
        Duration,
        _doc("The pause of a site after a pilot that never made contact; it doubles with each further one."),
    ] = _ENGINE.dead_start_seconds
    dead_starts_max: Annotated[
        Few,
        _doc(
            "Such pilots in a row after which nothing is submitted there for an hour, or until it is woken; 0: no limit."
        ),
    ] = _ENGINE.dead_starts_max
    agent_idle_seconds: Annotated[Interval, _doc("Time without work after which an agent on this computer ends.")] = (
        300.0
    )
    probes: Annotated[Few, _doc("Automatic probes of sites at once; 0: only probes by hand.")] = 0
    fairness: Annotated[
        Order,
        _doc("The order of jobs of equal priority: by the largest expected slowdown, or first come first served."),
    ] = _ENGINE.fairness
    provisioning: Annotated[
        Provisioning,
        _doc(
            "How many pilots are requested at a site where 30 starts are known: as few as are expected to finish nearly as early,"
            " or all that the work could use."
        ),
    ] = _ENGINE.provisioning
    provisioning_within: Annotated[
        Share,
        _doc("With `forecast`, the share by which the work may take longer than with all pilots that it could use."),
    ] = _ENGINE.provisioning_within
    healing: Annotated[
        Healing,
        _doc(
            "When late packages get a second attempt: if that is expected to end sooner, as in VIP's paper, or never;"
            " with `off`, no incident is looked for, and no packages share a batch job."
        ),
    ] = _ENGINE.healing
    group_packages_max: Annotated[
        Limit,
        _doc(
            "Most packages that share one batch job in bound mode, if they are shorter than the queue; 1: each has its own."
        ),
    ] = _ENGINE.group_packages_max
    waiting_seconds_max: Annotated[
        Duration, _doc("Time after which a ready package without a site is given up; 0: never.")
    ] = _ENGINE.waiting_seconds_max
    owner_running_max: Annotated[Quota, _doc("Reserved and running packages of one owner; 0: no limit.")] = (
        _ENGINE.owner_running_max
    )
    owner_packages_max: Annotated[
        Quota, _doc("Packages of all unfinished jobs of one owner; a job beyond that is refused; 0: no limit.")
    ] = _ENGINE.owner_packages_max
    flood_packages: Annotated[
        Quota,
        _doc(
            "Packages that are held for one file, or for space at one site, beyond which their job is held; 0: never."
        ),
    ] = _ENGINE.flood_packages
    fetch_attempts_max: Annotated[
        Limit, _doc("Failed fetches of one file to one site after which the packages that wait for it are held.")
    ] = _ENGINE.fetch_attempts_max
    fetch_delay_seconds: Annotated[
        Interval, _doc("Delay before a file that could not be fetched is tried again; it doubles with each failure.")
    ] = _ENGINE.fetch_delay_seconds
    probe_seconds: Annotated[Interval, _doc("Shortest time between two automatic probes of a site.")] = 3600.0
    probe_timeout_seconds: Annotated[Interval, _doc("Time after which a probe without a pilot has failed.")] = (
        _ENGINE.probe_timeout_seconds
    )


class BookSettings(Section, frozen=True, kw_only=True):
    """How the book treats events that are early, or come from a wrong clock."""

    skew_seconds: Annotated[
        Duration,
        _doc(
            "Events are flagged if their time is further in the future than this, or the sender's clock is off by more."
        ),
    ] = SKEW_SECONDS


class RetentionSettings(Section, frozen=True, kw_only=True):
    """How long a finished job is kept; the rows of pilots leave the book once the jobs that they served are sealed."""

    sealed_after_seconds: Annotated[
        Duration,
        _doc("Seconds from its last event until a finished job is sealed; then queries for its packages must name it."),
    ] = 86_400.0
    cleared_after_days: Annotated[Duration, _doc("Days after its end until a job is CLEARED.")] = 30.0
    purged_after_days: Annotated[Duration, _doc("Days from then until it is purged.")] = 7.0
    parked_days: Annotated[
        Duration, _doc("Days that events wait for the registration of their job, at least one; then they are dropped.")
    ] = 30.0
    every_seconds: Annotated[Duration, _doc("How often a service does this; 0: never.")] = 600.0


class ProvenanceSettings(Section, frozen=True, kw_only=True):
    """The records of jobs that are over, from which they can be understood and run again."""

    records: Annotated[
        Literal["auto", "yes", "no"],
        _doc(
            "Whether records are kept; `auto`: if `pilotage[provenance]` is installed. A job is purged only after its record."
        ),
    ] = "auto"
    storage: Annotated[
        str,
        _doc(
            "A folder in a store, such as `s3://bucket/records`, that gets a copy of every record before it counts; empty: none."
        ),
    ] = ""
    recorded_after_seconds: Annotated[
        Interval, _doc("Seconds from its last event until the record of a finished job is made.")
    ] = 10.0
    file_bytes_max: Annotated[
        Quota,
        _doc(
            "Inputs and outputs up to this size are kept in the record, 64 MiB of a job at most; of others their checksums."
        ),
    ] = 256 * KIBIBYTE
    kept_days: Annotated[Duration, _doc("Days from the end of a job until its record is deleted; 0: never.")] = 0.0
    never_deleted: Annotated[
        str,
        _doc(
            'Records that this query of `provenance find` finds are kept for ever, whatever `kept_days` says: such as `"tag.keep=yes or owner=ada"`.'
        ),
    ] = ""
    index: Annotated[
        str,
        _doc("The index server that `pilotage provenance find` asks, by its URL or folder; empty: the records here."),
    ] = ""
    variables: Annotated[
        tuple[str, ...], _doc("Environment variables of nodes that agents report, such as `LANG`; records have them.")
    ] = ()


class QuerySettings(Section, frozen=True, kw_only=True):
    """Indexes, and the size of an answer."""

    indexed: Annotated[
        tuple[str, ...], _doc("Attributes with an index, such as `owner` or `tag.study`, instead of the default ones.")
    ] = ()
    page_rows: Annotated[Limit, _doc("Rows of a page, unless the query sets them.")] = 100
    page_rows_max: Annotated[Limit, _doc("Rows of a page at most.")] = 1000


class NotificationSettings(Section, frozen=True, kw_only=True):
    """Subscriptions, and mail to owners and operators."""

    validity_seconds: Annotated[Duration, _doc("Lifetime of a subscription, unless it sets one.")] = 7200.0
    validity_seconds_max: Annotated[Duration, _doc("Longest lifetime without renewal.")] = 86_400.0
    digest_seconds: Annotated[Duration, _doc("At most one mail to an owner in this time.")] = 60.0
    smtp_host: Annotated[str, _doc("The mail server; without one no mail is sent.")] = ""
    smtp_port: Annotated[Port, _doc("Its port.")] = 25
    smtp_from: Annotated[str, _doc("The sender of every mail.")] = ""
    cluster_management: Annotated[tuple[str, ...], _doc("Recipients of platform failures.")] = ()
    grid_control: Annotated[tuple[str, ...], _doc("Recipients of crashes and missing outputs.")] = ()
    owner_addresses: Annotated[
        tuple[str, ...],
        _doc("Mail addresses of owners, as `OWNER=ADDRESS`; an owner whose name is an address needs none."),
    ] = ()
    webhook_networks: Annotated[
        tuple[str, ...],
        _doc("Networks besides the public ones that webhooks may reach, such as `127.0.0.0/8` for this machine."),
    ] = ()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the program. Made once, by `pilotage.model.settings.layers.settle`, and passed on."""

    journal: JournalSettings = JournalSettings()
    service: ServiceSettings = ServiceSettings()
    engine: EngineSection = EngineSection()
    selection: SelectionSettings = SelectionSettings()
    healing: HealingSettings = HealingSettings()
    book: BookSettings = BookSettings()
    retention: RetentionSettings = RetentionSettings()
    provenance: ProvenanceSettings = ProvenanceSettings()
    query: QuerySettings = QuerySettings()
    notifications: NotificationSettings = NotificationSettings()
    files: FilesSettings = FilesSettings()
    stores: tuple[StoreSettings, ...] = ()  # those of `[stores.NAME]`, by name


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: the name of a setting, its values, and its meaning."""

    section: str
    key: str
    kind: Kind
    default: Any
    description: str
    choices: tuple[str, ...] = ()  # a text must be one of these
    least: float | None = None
    most: float | None = None
    below: float | None = None  # more than any value

    @property
    def name(self) -> str:
        """As in error messages and flags: `service.port`."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PILOTAGE_{self.section}_{self.key}".upper()


STORES = "stores"
SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    f.name: f.type for f in msgspec.structs.fields(Settings) if f.name != STORES
}


def _rows(section: str, struct: type[msgspec.Struct]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        kind, choices, metas = _unwrap(field.type)
        if not metas:  # a name that the section's title gives
            continue
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
            below=next((meta.lt for meta in metas if meta.lt is not None), None),
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

SETTINGS: Mapping[str, Setting] = {
    row.name: row for section, struct in SECTIONS.items() for row in _rows(section, struct)
}
"""Every setting by its name, `section.key`, in the order of the reference page."""
STORE_SETTINGS: Mapping[str, Setting] = {row.key: row for row in _rows(f"{STORES}.NAME", StoreSettings)}
"""The settings of each store by their keys."""


def settings_tables() -> str:
    """Every section with its settings, as Markdown for the reference page."""
    parts = [part for section, struct in SECTIONS.items() for part in _table(section, struct)]
    parts += _table(f"{STORES}.NAME", StoreSettings)
    return "\n".join(parts)


def _table(section: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    yield f"## `[{section}]`\n\n{(struct.__doc__ or '').strip()}\n"
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    for row in _rows(section, struct):
        yield f"| `{row.key}` | {_accepted(row)} | {_shown(row.default)} | {row.description} |"
    yield ""


def _accepted(row: Setting) -> str:
    if row.choices:
        return " or ".join(f"`{choice}`" for choice in row.choices)
    if row.below is not None:
        return f"{row.kind}, {row.least:g} to less than {row.below:g}"
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
