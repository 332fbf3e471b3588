"""A site added by looking at it, and one taken away: what the commands of the same names do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pilotage.adapters.settings_files import state_folder
from pilotage.app.book import settings_here
from pilotage.app.dialects import add_dialects
from pilotage.app.site_adding import Chosen, Found, entry_from, look_around
from pilotage.app.site_contradictions import warnings_of
from pilotage.app.site_entries import (
    SiteRefused,
    add_entry,
    file_here,
    known_sites,
    named_sites,
    remove_entry,
    text_of,
)
from pilotage.language.text.quantities import BYTES_FORM, parse_bytes
from pilotage.model.definition import plain
from pilotage.model.site_entry import SiteEntry
from pilotage.ports import SiteUnreachable, SubmissionRefused
from pilotage.service.announcement import find_service

if TYPE_CHECKING:
    from pilotage.app.site_hops import Hop
    from pilotage.model.configuration import Settings


class Made(NamedTuple):
    """What was found, what was chosen, and what was written where."""

    found: Found
    entry: SiteEntry
    file: Path
    text: str
    written: bool
    warnings: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "found": msgspec.to_builtins(self.found),
            "entry": plain(self.entry),
            "file": str(self.file),
            "written": self.written,
            "warnings": list(self.warnings),
        }


def add_site(name: str, address: str, *, named: str, dry_run: bool, **asked: Any) -> Made:
    """Look at a site and write its entry; raises `SiteRefused`, `CannotLook` and what is wrong with the file."""
    settings = settings_here()
    file = file_here(settings, named=named)
    if any(each.name == name for each in known_sites(file).entries):
        next_step = f"remove it first: pilotage site remove {name}"
        raise SiteRefused("there is a site of this name", subject=f"{file}: {name}", next_step=next_step)
    memory = asked.get("memory", "")
    memory_bytes = parse_bytes(memory) if memory else 0
    if memory_bytes is None:
        raise SiteRefused("this is no size", subject="--memory", expected=BYTES_FORM, got=memory)
    state = state_folder(settings, folder=Path.cwd()).absolute()
    add_dialects(state)
    from pilotage.adapters.sites.batch import runs_commands
    from pilotage.app.sites import caller_for

    chosen = Chosen(
        kind=asked.get("kind", ""),
        setup=tuple(asked.get("setup", ())),
        queue=asked.get("queue", ""),
        account=asked.get("account", ""),
        python=asked.get("python", ""),
        folder=asked.get("folder", ""),
        slots=asked.get("slots") or 0,
        memory_bytes=memory_bytes,
        gpus=asked.get("gpus") or 0,
        pilots_max=asked.get("pilots_max") or 0,
        wall_time_seconds=asked.get("wall_seconds") or 0.0,
    )
    shape = SiteEntry(name=name, kind="unknown", address=address, setup=chosen.setup)
    text_of(shape, file)  # a bad name or address is refused before anything is called
    caller = caller_for(shape, state=state)
    try:
        server, why_not = _server(shape, state, settings)
        found = look_around(
            caller, chosen=chosen, commands=runs_commands(shape, caller), server=server, why_not=why_not
        )
    finally:
        caller.close()
    entry = entry_from(name, address, found, chosen)
    warnings = warnings_of(entry, found)
    text = text_of(entry, file) if dry_run else add_entry(file, entry)
    return Made(found, entry, file, text, written=not dry_run, warnings=warnings)


def _server(entry: SiteEntry, state: Path, settings: Settings) -> tuple[str, str]:
    """The address by which pilots of a site would reach the service, none where none runs; and why they cannot."""
    from pilotage.app.sites import server_for

    announced = find_service(state)
    if announced is None and not settings.service.address:
        return "", ""
    try:
        return server_for(entry, state=state, settings=settings), ""
    except SiteUnreachable:
        return "", ""
    except SubmissionRefused as refused:
        return announced.url if announced is not None else "", f"no: {refused.what}"


def remove_site(name: str, *, named: str) -> Path:
    """Take the entry of a site out of its file; the file. Raises `SiteRefused`."""
    file = named_sites(settings_here(), named).file
    remove_entry(file, name)
    return file


def test_site(name: str, *, named: str, seconds_max: float, tell: Callable[[Hop], None]) -> tuple[bool, Sequence[Hop]]:
    """Run one real pilot through every hop of a site; whether all were passed, and what was seen at each."""
    from pilotage.app.site_testing import SiteTest

    settings = settings_here({"service.sites": named or None})
    known = named_sites(settings, named)
    file, entry = known.file, known.entry(name)
    add_dialects(state_folder(settings, folder=Path.cwd()).absolute())
    tested = SiteTest(
        entry,
        settings=settings,
        folder=Path.cwd(),
        seconds_max=seconds_max,
        tell=tell,
        sites=str(file) if named else "",
    )
    return tested.run(), tested.hops
