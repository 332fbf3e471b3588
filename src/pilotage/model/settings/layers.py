"""Merges settings from files, variables and flags into one `Settings`: later layers win, and all faults are reported at once.

Nothing is read here; `pilotage.adapters.settings.settings_files` reads the layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.settings.settings import (
    SECTIONS,
    SETTINGS,
    STORE_SETTINGS,
    STORES,
    BadJournalAddress,
    Kind,
    Setting,
    Settings,
    without_password,
)
from pilotage.model.settings.stores import StoreSettings, store_faults

PREFIX = "PILOTAGE_"
ENVIRONMENT = "environment"
FLAGS = "command line"

SHORT_VARIABLES = {"PILOTAGE_JOURNAL": "journal.url"}
"""Variables for one setting without the name of its section."""

OTHER_VARIABLES = frozenset({
    "PILOTAGE_ATTEMPT", "PILOTAGE_CA_FILE", "PILOTAGE_CI", "PILOTAGE_CORES", "PILOTAGE_EPOCH", "PILOTAGE_EXIT_STATUS", "PILOTAGE_FOLDER",
    "PILOTAGE_GPUS", "PILOTAGE_INDEX", "PILOTAGE_JOB", "PILOTAGE_MARK", "PILOTAGE_MEMORY_BYTES", "PILOTAGE_NODE",
    "PILOTAGE_NODES",
    "PILOTAGE_PACKAGE", "PILOTAGE_PATH", "PILOTAGE_REASON", "PILOTAGE_REFERENCE_DATA", "PILOTAGE_SCRATCH",
    "PILOTAGE_SEEN",
    "PILOTAGE_SERVER", "PILOTAGE_SITE", "PILOTAGE_SPOOL", "PILOTAGE_TOKEN", "PILOTAGE_TOKEN_FILE",
})  # fmt: skip
"""Variables with our prefix that are no settings: the identity of a running package, the server of a client, and the tests'."""

_ATTRIBUTE = re.compile(r"[a-z][a-z_]*|tag\.[^\s.][^\s]*")
_ADDRESS = re.compile(r"[^\s@<>,]+@[^\s@<>,]+")


class SettingFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in the settings: its origin, the name that was used, and what is wrong."""

    origin: str
    name: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """In one line."""
        place = f"{self.origin}: {self.name}" if self.name else self.origin
        return f"{place}: {self.message}" + (f"; {self.hint}" if self.hint else "")


class SettingsError(PilotageError):
    """The settings were refused: `faults` lists everything that is wrong. Fix it and start again."""

    def __init__(self, faults: Iterable[SettingFault]) -> None:
        """Store the faults in the order they were found: from the system's file to the flags."""
        self.faults = tuple(faults)
        count = len(self.faults)
        super().__init__(f"{count} fault{'' if count == 1 else 's'} in the settings")

    def __str__(self) -> str:
        """One line per fault."""
        return "\n".join(str(fault) for fault in self.faults)


class GivenSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as given; `spelling` is the name that was used, `value` is not checked yet."""

    origin: str
    name: str
    spelling: str
    value: Any


def settings_in_file(tree: Mapping[str, Any], *, origin: str) -> list[GivenSetting]:
    """The settings of a file: a table for each section."""
    given = []
    for section, content in tree.items():
        if section == STORES and isinstance(content, Mapping):
            names = _store_names(content)
        elif isinstance(content, Mapping) and section in SECTIONS:
            names = {f"{section}.{key}": value for key, value in content.items()}
        else:
            names = {section: content}
        given += [GivenSetting(origin=origin, name=name, spelling=name, value=value) for name, value in names.items()]
    return given


def _store_names(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of stores: a table for each store in the table of all."""
    names: dict[str, Any] = {}
    for store, values in content.items():
        if isinstance(values, Mapping):
            names |= {f"{STORES}.{store}.{key}": value for key, value in values.items()}
        else:
            names[f"{STORES}.{store}"] = values
    return names


def settings_in_environment(environment: Mapping[str, str]) -> list[GivenSetting]:
    """The settings of `PILOTAGE_*` variables; numbers and lists are parsed, lists at their commas."""
    given = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("_")
        name = SHORT_VARIABLES.get(variable, f"{section}.{key}")
        # An unknown name keeps its text: `settle` refuses it.
        value = _READERS[SETTINGS[name].kind](text) if name in SETTINGS else text
        given.append(GivenSetting(origin=ENVIRONMENT, name=name, spelling=variable, value=value))
    return given


def settings_in_flags(flags: Mapping[str, object]) -> list[GivenSetting]:
    """The settings of flags, by name (`service.port`); None is a flag that was not given."""
    return [
        GivenSetting(origin=FLAGS, name=name, spelling=name, value=value)
        for name, value in flags.items()
        if value is not None
    ]


def settle(given: Iterable[GivenSetting], *, faults: Iterable[SettingFault] = ()) -> Settings:
    """Merge all layers, the last one winning; `faults` are those found while reading them."""
    found = list(faults)
    chosen: dict[str, GivenSetting] = {}
    for one in given:
        row = _row(one.name)
        if row is None or (one.origin == ENVIRONMENT and one.spelling not in (row.variable, *SHORT_VARIABLES)):
            found.append(_unknown(one))
            continue
        value, wrong = _checked(row, one.value)
        if wrong:
            found.append(SettingFault(origin=one.origin, name=one.spelling, message=wrong))
        rival = chosen.get(one.name)
        if rival and rival.origin == one.origin and rival.value != value:
            message = f"contradicts {rival.spelling}: give only one of them"
            found.append(SettingFault(origin=one.origin, name=one.spelling, message=message))
        chosen[one.name] = msgspec.structs.replace(one, value=value)
    if found:
        raise SettingsError(found)
    sections: dict[str, Any] = {}
    for section, struct in SECTIONS.items():
        values = {one.name.partition(".")[2]: one for one in chosen.values() if _of(one) == section}
        try:
            sections[section] = struct(**{key: one.value for key, one in values.items()})
        except ValueError as fault:  # values that are valid alone but not together
            last = list(values.values())[-1]
            found.append(SettingFault(origin=last.origin, name=last.spelling, message=str(fault)))
    if found:
        raise SettingsError(found)
    settings = Settings(**sections, stores=_stores(chosen))
    if found := [_blamed(chosen, name, message) for name, message in _disagreements(settings)]:
        raise SettingsError(found)
    return settings


def _of(one: GivenSetting) -> str:
    return one.name.partition(".")[0]


def _row(name: str) -> Setting | None:
    """The row of a setting, also of one of a store."""
    if not name.startswith(f"{STORES}."):
        return SETTINGS.get(name)
    store, _, key = name.removeprefix(f"{STORES}.").rpartition(".")
    return STORE_SETTINGS.get(key) if store else None


def _stores(chosen: Mapping[str, GivenSetting]) -> tuple[StoreSettings, ...]:
    """The stores, by name; a later file may change a single key of one."""
    stores: dict[str, dict[str, Any]] = {}
    for name, one in chosen.items():
        if name.startswith(f"{STORES}."):
            store, _, key = name.removeprefix(f"{STORES}.").rpartition(".")
            stores.setdefault(store, {})[key] = one.value
    return tuple(StoreSettings(name=name, **values) for name, values in sorted(stores.items()))


def _unknown(one: GivenSetting) -> SettingFault:
    if one.origin == ENVIRONMENT:
        known = [row.variable for row in SETTINGS.values()] + [*SHORT_VARIABLES, *OTHER_VARIABLES]
        message, hint = "no setting has this variable", did_you_mean(one.spelling.upper(), known)
    elif one.name == STORES or (one.name.startswith(f"{STORES}.") and one.name.count(".") == 1):
        message, hint = "this is no store", "write [stores.NAME] and its keys below"
    elif one.name.startswith(f"{STORES}."):
        message = "there is no such setting of a store"
        hint = did_you_mean(one.name.rpartition(".")[2], STORE_SETTINGS)
    elif one.name in SECTIONS:
        message, hint = "this is a section, not a setting", f"write [{one.name}] and its keys below"
    elif "." not in one.name:
        message, hint = "there is no such section", did_you_mean(one.name, [*SECTIONS, STORES])
    else:
        siblings = [row.name for row in SETTINGS.values() if row.section == _of(one)]
        message, hint = "there is no such setting", did_you_mean(one.name, siblings or SETTINGS)
    return SettingFault(origin=one.origin, name=one.spelling, message=message, hint=hint)


def _blamed(chosen: Mapping[str, GivenSetting], name: str, message: str) -> SettingFault:
    """A fault of several settings together, at the origin of the one it names."""
    one = chosen.get(name)
    if one is None and name.startswith(f"{STORES}."):  # a key that is missing belongs to the file of the others
        store = ".".join(name.split(".")[:2])
        origin = next(each.origin for key, each in chosen.items() if key.startswith(f"{store}."))
        return SettingFault(origin=origin, name=name, message=message)
    origin, spelling = (one.origin, one.spelling) if one else ("defaults", name)
    return SettingFault(origin=origin, name=spelling, message=message)


def _checked(row: Setting, value: Any) -> tuple[Any, str]:
    """The value in its own type and an empty text, or what is wrong with it."""
    good = False
    match row.kind:
        case "text":
            good = isinstance(value, str)
        case "whole number":
            good = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            value = float(value) if good else value
        case "list of texts":
            good = isinstance(value, list | tuple) and all(isinstance(element, str) for element in value)
            value = tuple(value) if good else value
    if not good:
        return value, f"expected a {row.kind}, got {_shown(value)}"
    if row.choices and value not in row.choices:
        return value, f"expected {' or '.join(row.choices)}, got {_shown(value)}"
    if row.least is not None and value < row.least:
        return value, f"expected at least {row.least:.15g}, got {_shown(value)}"
    if row.most is not None and value > row.most:
        return value, f"expected at most {row.most:.15g}, got {_shown(value)}"
    if row.below is not None and value >= row.below:
        return value, f"expected less than {row.below:.15g}, got {_shown(value)}"
    if row.choices and value not in row.choices:
        return value, f"expected one of {', '.join(row.choices)}, got {_shown(value)}"
    texts = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
    # A line break in an address would let a setting write headers of a mail.
    if not all(text.isprintable() for text in texts):
        return value, f"expected printable characters, got {_shown(value)}"
    return value, ""


def _disagreements(settings: Settings) -> Iterable[tuple[str, str]]:
    """Values that are valid alone but not together, or need a special form: the setting's name and what is wrong."""
    for smaller, larger in (
        ("service.event_bytes_max", "service.batch_bytes_max"),
        ("service.tag_bytes_max", "service.event_bytes_max"),
        ("query.page_rows", "query.page_rows_max"),
        ("notifications.validity_seconds", "notifications.validity_seconds_max"),
    ):
        low, high = _get(settings, smaller), _get(settings, larger)
        if low > high:
            yield smaller, f"{low:.15g} is more than {larger}, which is {high:.15g}"
    try:
        _ = settings.journal.address
    except BadJournalAddress as error:
        yield "journal.url", str(error).replace("\n  ", "; ")
    if not _can_be_a_host(settings.service.host):
        yield "service.host", "expected an address to listen on, such as 127.0.0.1"
    for attribute in settings.query.indexed:
        if not _ATTRIBUTE.fullmatch(attribute):
            yield "query.indexed", f"expected names such as owner or tag.study, got {attribute!r}"
    yield from _mail_disagreements(settings)
    yield from _store_disagreements(settings)


def _can_be_a_host(text: str) -> bool:
    """Whether a text can be a host name at all: one with other than ASCII letters must have an encoded form."""
    try:
        return bool(text) and (text.isascii() or bool(text.encode("idna")))
    except UnicodeError:
        return False


def _mail_disagreements(settings: Settings) -> Iterable[tuple[str, str]]:
    mail = settings.notifications
    if mail.smtp_host and not mail.smtp_from:
        yield "notifications.smtp_host", "mail needs a sender: set notifications.smtp_from too"
    if mail.smtp_host and not mail.smtp_port:
        yield "notifications.smtp_port", "expected the port of the mail server, got 0"
    senders = (mail.smtp_from,) if mail.smtp_from else ()
    for key, addresses in {
        "smtp_from": senders,
        "cluster_management": mail.cluster_management,
        "grid_control": mail.grid_control,
    }.items():
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                yield f"notifications.{key}", f"expected an address such as farm@example.org, got {address!r}"


def _store_disagreements(settings: Settings) -> Iterable[tuple[str, str]]:
    names = [store.name for store in settings.stores]
    for store in settings.stores:
        for key, message in store_faults(store):
            yield f"{STORES}.{store.name}.{key}".rstrip("."), message
    for name in settings.files.archive:
        if name not in names:
            yield "files.archive", f"there is no [stores.{name}]; {did_you_mean(name, names)}".rstrip("; ")


def _get(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _shown(value: Any) -> str:
    match value:
        case str():
            return repr(without_password(value))
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:.15g}"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def _whole_number(text: str) -> Any:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text, re.ASCII) else text


def _number(text: str) -> Any:
    return float(text) if re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", text, re.ASCII) else text


def _texts(text: str) -> Any:
    return [part.strip() for part in text.split(",")] if text.strip() else []


_READERS: dict[Kind, Callable[[str], Any]] = {
    "text": str,
    "whole number": _whole_number,
    "number": _number,
    "list of texts": _texts,
}
