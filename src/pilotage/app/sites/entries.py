"""The sites that a person wrote down: read from `sites.yaml`, and one entry written into it or taken out of it.

Whoever wrote the file finds it as it was: an entry is added or removed as lines of text, and the rest is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.adapters.settings.settings_files import Kept, SitesFileError, mark_of, read_file, sites_file, write_file
from pilotage.app.state_folder import settings_here
from pilotage.language.parsing.sites import entry_lines, read_sites, sites_schema, write_sites
from pilotage.model.errors import DocumentError, PilotageError, did_you_mean
from pilotage.model.jobs.definition import plain
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry, SitesFile


class SiteRefused(PilotageError):
    """A site is there already, or is not; or it cannot be changed without changing what its writer wrote besides."""


class KnownSites(NamedTuple):
    """What a file says, and the file as it was read; without a file there are no sites."""

    file: Path
    kept: Kept | None
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
    """The file of sites that commands in a folder mean, or in the current one."""
    place = folder if folder is not None else Path.cwd()
    return sites_file(environment=os.environ, folder=place, named=named or settings.service.sites).absolute()


def known_sites(file: Path) -> KnownSites:
    """What a file says; raises `DocumentError` with every fault of it."""
    kept = read_file(file)
    if kept is None:
        return KnownSites(file, None, ())
    found, report = read_sites(kept.content, file=str(file), kinds=known_kinds)
    if found is None:
        raise DocumentError(report.errors)
    return KnownSites(file, kept, found.sites)


def named_sites(settings: Settings, named: str) -> KnownSites:
    """What the file says that somebody named, which must be there, or the one that commands here mean, which need not."""
    file = file_here(settings, named=named)
    if named:
        refuse_missing(file)
    return known_sites(file)


def refuse_missing(file: Path) -> None:
    """Raise where a file that somebody named is not there."""
    if mark_of(file) is None:
        raise SitesFileError(
            "there is no such file of sites", subject=str(file), next_step="write it: pilotage site add NAME"
        )


def known_kinds() -> frozenset[str]:
    """The batch systems there are: ours, and the dialects that were added in this folder."""
    from pilotage.adapters.settings.settings_files import state_folder
    from pilotage.agent.batch import dialects
    from pilotage.app.sites.dialects import add_dialects
    from pilotage.app.state_folder import settings_here

    add_dialects(state_folder(settings_here(), folder=Path.cwd()).absolute())
    return frozenset(dialects())


def executors_for(folder: Path) -> frozenset[str]:
    """What packages of documents in a folder may name as their executor besides this computer: sites, and their kinds."""
    try:
        entries = known_sites(sites_file(environment=os.environ, folder=folder)).entries
    except PilotageError:
        return frozenset()  # what is wrong with the file is said by whoever uses it
    return frozenset(name for entry in entries for name in (entry.name, entry.kind))


def schema() -> Mapping[str, Any]:
    """The JSON Schema of a file of sites."""
    return sites_schema()


def text_of(entry: SiteEntry, file: Path) -> str:
    """A file with one entry and nothing else; raises `DocumentError` where the entry is not fit to be one."""
    text = write_sites(SitesFile(sites=(entry,)))
    found, report = read_sites(text.encode("utf-8"), file=str(file))
    if found is None:
        raise DocumentError(report.errors)
    return text


def add_entry(file: Path, entry: SiteEntry) -> str:
    """Write one more entry into a file, behind those that are there; the lines that were added.

    Raises `SiteRefused` where a site of this name is there, and `DocumentError` where the entry is not fit to be one.
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
    """Take an entry out of a file; the entry. Raises `SiteRefused`."""
    known = known_sites(file)
    entry = known.entry(name)
    assert known.kept is not None
    position = known.entries.index(entry)
    expected = tuple(each for each in known.entries if each is not entry)
    places = entry_lines(known.kept.content, file=str(file))
    lines = known.kept.content.decode("utf-8").splitlines(keepends=True)
    if expected:
        end = places[position + 1].line - 1 if position + 1 < len(places) else len(lines)
        # A comment right above the next entry is about that one.
        while position + 1 < len(places) and lines[end - 1].lstrip().startswith("#"):
            end -= 1
        del lines[places[position].line - 1 : end]
        changed = "".join(lines)
    else:
        # A list without entries is written in another way; what stood before it stays.
        before = lines[: places[0].line - 1]
        changed = "".join("sites: []\n" if line.rstrip() == "sites:" else line for line in before)
    _write_expected(file, changed, known.kept, expected)
    return entry


def _comments(kept: Kept | None) -> str:
    """The comments of a file without sites."""
    if kept is None:
        return ""
    lines = kept.content.decode("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def _write_expected(file: Path, text: str, kept: Kept, expected: tuple[SiteEntry, ...]) -> None:
    """Replace a file by a text that says what is expected; where it does not, its writer must do it."""
    found, _ = read_sites(text.encode("utf-8"), file=str(file))
    if found is None or found.sites != expected:
        raise SiteRefused(
            "this file is written in a way that only its writer can change",
            subject=str(file),
            expected="each site as an item of a list, on lines of its own",
            next_step="change it in an editor",
        )
    write_file(file, text, before=kept)


LOCAL = "local"
"""What the computer that the service runs on is called among the sites."""


# Sites as they are written down, for whoever asks while no service runs: in the same form as a service tells of
# them.

NOT_SERVED = "not served"


def written_sites(named: str | None) -> dict[str, Any]:
    """All sites of the file that commands in this folder mean; raises `DocumentError` for what is wrong with it."""
    known = named_sites(settings_here(), named or "")
    return {"sites": [_view(entry) for entry in known.entries], "file": str(known.file), "fault": ""}


def written_site(name: str) -> dict[str, Any]:
    """One site of that file, as a service that never ran for it would tell of it; raises `SiteRefused`."""
    entry = known_sites(file_here(settings_here())).entry(name)
    return {"site": _view(entry), "entry": plain(entry), "reasons": [], "pilots": [], "noticed": []}


def _view(entry: SiteEntry) -> dict[str, Any]:
    counts = dict.fromkeys(("pilots_queued", "pilots_live", "slots", "used", "dead_starts"), 0)
    unknown = dict.fromkeys(("score", "tscore", "queue_seconds", "next_try_at"))
    texts = dict.fromkeys(("message", "says", "closed", "unheard", "last_words"), "")
    about = {"site": entry.name, "kind": entry.kind, "mode": entry.mode, "status": NOT_SERVED}
    return {**about, **unknown, **counts, **texts, "updated_at": 0.0}
