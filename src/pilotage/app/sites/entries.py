"""The file of sites, `sites.yaml`: reads it, and adds or removes one entry.

An entry is added or removed as lines of text, so the rest of the file stays as its author wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.adapters.settings.settings_files import (
    SitesFileError,
    SitesFileVersion,
    read_file,
    sites_file,
    stamp_of,
    write_file,
)
from pilotage.app.state_folder import settings_here
from pilotage.language.parsing.sites import entry_lines, read_sites, sites_schema, write_sites
from pilotage.model.errors import DocumentError, PilotageError, did_you_mean
from pilotage.model.jobs.definition import plain
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry, SitesFile


class SiteRefused(PilotageError):
    """A site exists already, or does not; or its entry cannot be changed without changing other parts of the file."""


class SiteEntries(NamedTuple):
    """The entries of a file, and the file as it was read; without a file there are no sites."""

    file: Path
    kept: SitesFileVersion | None
    entries: tuple[SiteEntry, ...]

    def entry(self, name: str) -> SiteEntry:
        """The entry of a site; raises `SiteRefused`."""
        found = next((each for each in self.entries if each.name == name), None)
        if found is None:
            hint = did_you_mean(name, [each.name for each in self.entries]) if self.entries else ""
            next_step = hint or f"add it: pilotage site add {name}"
            raise SiteRefused("no such site in this file", subject=f"{self.file}: {name}", next_step=next_step)
        return found


def file_here(settings: Settings, *, named: str = "", folder: Path | None = None) -> Path:
    """The file of sites for commands in a folder, or in the current one."""
    place = folder if folder is not None else Path.cwd()
    return sites_file(environment=os.environ, folder=place, named=named or settings.service.sites).absolute()


def known_sites(file: Path) -> SiteEntries:
    """The entries of a file; raises `DocumentError` with all its faults."""
    kept = read_file(file)
    if kept is None:
        return SiteEntries(file, None, ())
    found, report = read_sites(kept.content, file=str(file), kinds=known_kinds)
    if found is None:
        raise DocumentError(report.errors)
    return SiteEntries(file, kept, found.sites)


def named_sites(settings: Settings, named: str) -> SiteEntries:
    """The entries of a named file, which must exist, or of the default one, which need not."""
    file = file_here(settings, named=named)
    if named:
        refuse_missing(file)
    return known_sites(file)


def refuse_missing(file: Path) -> None:
    """Raise if a named file does not exist."""
    if stamp_of(file) is None:
        raise SitesFileError(
            "there is no such file of sites", subject=str(file), next_step="write it: pilotage site add NAME"
        )


def known_kinds() -> frozenset[str]:
    """The known batch systems: ours, and the dialects added in this folder."""
    from pilotage.adapters.settings.settings_files import state_folder
    from pilotage.agent.batch import dialects
    from pilotage.app.sites.dialects import add_dialects
    from pilotage.app.state_folder import settings_here

    add_dialects(state_folder(settings_here(), folder=Path.cwd()).absolute())
    return frozenset(dialects())


def executors_for(folder: Path) -> frozenset[str]:
    """Executors that documents in a folder may name, besides this computer: sites, and their kinds."""
    try:
        entries = known_sites(sites_file(environment=os.environ, folder=folder)).entries
    except PilotageError:
        return frozenset()  # the fault of the file is reported where it is used
    return frozenset(name for entry in entries for name in (entry.name, entry.kind))


def schema() -> Mapping[str, Any]:
    """The JSON Schema of a file of sites."""
    return sites_schema()


def text_of(entry: SiteEntry, file: Path) -> str:
    """The text of a file with one entry; raises `DocumentError` for a faulty entry."""
    text = write_sites(SitesFile(sites=(entry,)))
    found, report = read_sites(text.encode("utf-8"), file=str(file))
    if found is None:
        raise DocumentError(report.errors)
    return text


def add_entry(file: Path, entry: SiteEntry) -> str:
    """Append an entry to a file; returns the added lines.

    Raises `SiteRefused` if a site of this name exists, and `DocumentError` for a faulty entry.
    """
    known = known_sites(file)
    if any(each.name == entry.name for each in known.entries):
        next_step = f"remove it: pilotage site remove {entry.name}"
        raise SiteRefused("there is a site of this name", subject=f"{file}: {entry.name}", next_step=next_step)
    whole = text_of(entry, file)
    if known.kept is None or not known.entries:
        write_file(file, _comments(known.kept) + whole, before=known.kept)
        return whole
    text = known.kept.content.decode("utf-8")
    margin = " " * entry_lines(known.kept.content, file=str(file))[0].indent
    lines = [line.removeprefix("  ") for line in whole.split("\n")[2:-1]]
    added = "".join(f"{margin}{line}\n" if line else "\n" for line in lines)
    changed = text + ("" if text.endswith("\n") else "\n") + added
    _write_expected(file, changed, known.kept, (*known.entries, entry))
    return added


def remove_entry(file: Path, name: str) -> SiteEntry:
    """Remove an entry from a file, and return it. Raises `SiteRefused`."""
    known = known_sites(file)
    entry = known.entry(name)
    assert known.kept is not None
    position = known.entries.index(entry)
    expected = tuple(each for each in known.entries if each is not entry)
    places = entry_lines(known.kept.content, file=str(file))
    lines = known.kept.content.decode("utf-8").splitlines(keepends=True)
    if expected:
        end = places[position + 1].line - 1 if position + 1 < len(places) else len(lines)
        # A comment right above the next entry belongs to that one.
        while position + 1 < len(places) and lines[end - 1].lstrip().startswith("#"):
            end -= 1
        del lines[places[position].line - 1 : end]
        changed = "".join(lines)
    else:
        # An empty list has another notation; the text before it stays.
        before = lines[: places[0].line - 1]
        changed = "".join("sites: []\n" if line.rstrip() == "sites:" else line for line in before)
    _write_expected(file, changed, known.kept, expected)
    return entry


def _comments(kept: SitesFileVersion | None) -> str:
    """The comments of a file without sites."""
    if kept is None:
        return ""
    lines = kept.content.decode("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def _write_expected(file: Path, text: str, kept: SitesFileVersion, expected: tuple[SiteEntry, ...]) -> None:
    """Replace a file if the new text has the expected entries; otherwise its author must change it."""
    found, _ = read_sites(text.encode("utf-8"), file=str(file))
    if found is None or found.sites != expected:
        raise SiteRefused(
            "this file has a form that cannot be changed automatically",
            subject=str(file),
            expected="each site as an item of a list, on lines of its own",
            next_step="change it in an editor",
        )
    write_file(file, text, before=kept)


LOCAL = "local"
"""The name of the service's own computer among the sites."""


# The configured sites while no service runs, in the same form as a service lists them.

NOT_SERVED = "not served"


def written_sites(named: str | None) -> dict[str, Any]:
    """All configured sites for commands in this folder; raises `DocumentError` for faults of the file."""
    known = named_sites(settings_here(), named or "")
    return {"sites": [_view(entry) for entry in known.entries], "file": str(known.file), "fault": ""}


def written_site(name: str) -> dict[str, Any]:
    """One configured site, in the form of a service that never used it; raises `SiteRefused`."""
    entry = known_sites(file_here(settings_here())).entry(name)
    return {"site": _view(entry), "entry": plain(entry), "reasons": [], "pilots": [], "noticed": []}


def _view(entry: SiteEntry) -> dict[str, Any]:
    counts = dict.fromkeys(("pilots_queued", "pilots_live", "slots", "used", "dead_starts"), 0)
    unknown = dict.fromkeys(("score", "tscore", "queue_seconds", "next_try_at"))
    texts = dict.fromkeys(("message", "says", "closed", "unheard", "last_words"), "")
    about = {"site": entry.name, "kind": entry.kind, "mode": entry.mode, "status": NOT_SERVED}
    return {**about, **unknown, **counts, **texts, "updated_at": 0.0}
