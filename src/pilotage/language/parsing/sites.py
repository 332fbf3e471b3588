"""Reads and writes `sites.yaml`: text → tree → checked entries, with all faults of the file at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from pilotage.language.folder import MemoryFolder
from pilotage.language.parsing.document import nearest_mark
from pilotage.language.parsing.kinds import DocumentParse, Schema, describe
from pilotage.language.parsing.records import Record
from pilotage.language.parsing.schema import record_schema
from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.language.text.yaml import read_tree
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import plain
from pilotage.model.sites.entry import SITE_NAME_FORM, SITES_MAX, SITES_VERSION, SiteEntry, SitesFile

LOCAL_NAME = "local"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,59}")
_TEXTS = ("queue", "account", "parallel_environment", "folder", "python")
_OF_BATCH_SYSTEMS = (
    "started_by",
    "queue",
    "account",
    "parallel_environment",
    "directives",
    "folder",
    "python",
    "setup",
)
_DEFAULTS = SiteEntry(name="", kind="")
_SSH_FORM = "ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT"


def read_sites(
    data: bytes, *, file: str, kinds: Callable[[], Collection[str]] | None = None
) -> tuple[SitesFile | None, Report]:
    """Read a file of sites; the report has all faults, and the result is None if there are any.

    `kinds` returns the known batch systems; it is called only if an entry is not `local`.
    """
    tree, report = read_tree(data, file=file)
    if tree is None:
        if not data.strip():
            report.errors[:] = []
            hint = "add a site with: pilotage site add NAME"
            report.error("empty-document", "the file of sites is empty", Mark(1, 1), hint=hint)
        return None, report
    reading = DocumentParse(report, MemoryFolder({}))
    table = table_of_sites(tree, reading, version=SITES_VERSION)
    if table is None:
        return None, report
    listed = table.get("sites")
    if isinstance(listed, Listing) and len(listed.items) > SITES_MAX:
        message = f"a service can have at most {SITES_MAX:,} sites; the file has {len(listed.items):,}"
        hint = "a site is a whole cluster or one of its queues, with any number of nodes"
        report.error("too-many-sites", message, listed.items[SITES_MAX].mark, hint=hint)
        return None, report
    found = Record(SitesFile).read(table, (), reading)
    if isinstance(found, SitesFile):
        positions: dict[str, int] = {}
        for position, entry in enumerate(found.sites):
            if reading.is_faulty(("sites", position)):
                continue
            for code, message, field in _faults(entry, positions):
                report.error(code, message, nearest_mark(reading.marks, ("sites", position, field)))
            many = ("sites", position, "pilots_max")
            if entry.name == LOCAL_NAME and entry.pilots_max not in (None, 1) and many in reading.marks:
                message = "this computer has one pilot; 'slots' limits how much it runs at once"
                report.error("misplaced-field", message, reading.marks[many])
            if kinds is not None and entry.kind != LOCAL_NAME and entry.kind not in (known := {LOCAL_NAME, *kinds()}):
                mark = nearest_mark(reading.marks, ("sites", position, "kind"))
                message = f"there is no batch system of the kind {entry.kind!r}"
                report.error("unknown-choice", message, mark, hint=did_you_mean(entry.kind, known))
            positions[entry.name] = position
    return (found if isinstance(found, SitesFile) and not report.errors else None), report


def table_of_sites(tree: Node, reading: DocumentParse, *, version: int) -> Table | None:
    """The table of a file that begins with its version and tells of sites; None, with the fault in the report, if it is another."""
    if not isinstance(tree, Table):
        reading.fault("wrong-type", tree, f"expected a file with the field 'sites', got {describe(tree)}")
        return None
    head = tree.get("pilotage")
    if head is None or not isinstance(head, Scalar) or head.text != str(version):
        got = "is missing" if head is None else f"is {describe(head)}"
        hint = f"begin with the line  pilotage: {version}"
        reading.fault("unknown-version", head or tree, f"the field 'pilotage' {got}", hint=hint)
        return None
    return tree


def write_sites(file: SitesFile) -> str:
    """The canonical text of a file of sites."""
    from pilotage.language.text.emit import write_yaml

    return write_yaml(plain(file))


class EntryLine(NamedTuple):
    """The start of an entry: its line, from 1, and the indentation of its dash."""

    line: int
    indent: int


def entry_lines(data: bytes, *, file: str) -> list[EntryLine]:
    """The start of each entry of a valid file."""
    tree, report = read_tree(data, file=file)
    listed = tree.get("sites") if isinstance(tree, Table) else None
    found = []
    for item in listed.items if isinstance(listed, Listing) else ():
        line = report.lines[item.mark.line - 1]
        found.append(EntryLine(item.mark.line, len(line) - len(line.lstrip())))
    return found


def sites_schema() -> Schema:
    """The JSON Schema of a file of sites, for editors and other programs."""
    return record_schema(SitesFile, title="the sites of pilotage", version=SITES_VERSION)


def _faults(entry: SiteEntry, positions: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    """Faults between the fields of an entry, or with the entries before it: code, message, field."""
    if not _NAME.fullmatch(entry.name):
        yield "bad-name", f"{entry.name!r} cannot name a site: expected {SITE_NAME_FORM}", "name"
    elif entry.name in positions:
        yield "duplicate-name", f"two sites are called {entry.name!r}", "name"
    elif entry.name == LOCAL_NAME and entry.kind != "local":
        yield "bad-name", f"{LOCAL_NAME!r} is the computer that the service runs on", "name"
    if entry.address and not _is_ssh(entry.address):
        yield "bad-address", f"expected {_SSH_FORM}, got {entry.address!r}", "address"
    if entry.kind == "local" and entry.address:
        yield "misplaced-field", "the kind 'local' starts processes here and has no address", "address"
    if entry.kind == "local" and entry.mode == "bound":
        yield "misplaced-field", "the kind 'local' has no batch system to bind a package to", "mode"
    if entry.kind == "local" and entry.nodes_max > 1:
        yield "misplaced-field", "the kind 'local' is one computer: several nodes need a batch system", "nodes_max"
    if entry.kind == "local":
        for field in _OF_BATCH_SYSTEMS:
            if getattr(entry, field) != getattr(_DEFAULTS, field):
                yield "misplaced-field", f"the kind 'local' starts processes here and does not use {field!r}", field
    yield from _faults_of_texts(entry)
    if entry.users and any(not user for user in entry.users):
        yield "bad-name", "the name of a user is empty", "users"


def _faults_of_texts(entry: SiteEntry) -> Iterator[tuple[str, str, str]]:
    """Texts that would be misread in the script of a batch job."""
    for field in _TEXTS:
        if _has_control(getattr(entry, field)):
            yield "bad-text", f"{field!r} cannot contain a control character", field
    if not entry.python.strip():
        yield "bad-text", "'python' is empty: name the command of Python there, or leave it out", "python"
    if any(map(_has_control, entry.directives)):
        yield "bad-text", "each of 'directives' must be one line without control characters", "directives"
    if entry.folder.startswith("~") and entry.folder != "~" and not entry.folder.startswith("~/"):
        yield "bad-path", f"`~` can only be your own home folder, got {entry.folder!r}", "folder"


def _has_control(text: str) -> bool:
    return any(ord(letter) < 32 for letter in text)


def _is_ssh(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.password
    host = parts.hostname or ""
    safe = not host.startswith("-") and not (parts.username or "").startswith("-")  # ssh would read it as an option
    return parts.scheme == "ssh" and bool(host) and safe and not rest and (port is None or port > 0)
