"""Adds a discovered site to the file of sites, and removes one: the commands of the same names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.site_setup.discovery import Discovery, RequestedValues, discover, entry_from, warnings_of
from pilotage.app.sites.dialects import DIALECTS_FOLDER, Packed, add_dialects, pack
from pilotage.app.sites.entries import (
    SiteRefused,
    add_entry,
    file_here,
    known_sites,
    named_sites,
    remove_entry,
    text_of,
)
from pilotage.app.state_folder import settings_here
from pilotage.language.text.quantities import BYTES_FORM, parse_bytes
from pilotage.model.jobs.definition import plain
from pilotage.model.sites.entry import SiteEntry
from pilotage.ports import SiteUnreachable, SubmissionRefused
from pilotage.service.announcement import find_service

if TYPE_CHECKING:
    from pilotage.app.site_setup.testing import Hop
    from pilotage.model.settings.settings import Settings


class AddedSite(NamedTuple):
    """What was discovered, what was chosen, and what was written where."""

    found: Discovery
    entry: SiteEntry
    file: Path
    text: str
    written: bool
    warnings: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The same, as plain values."""
        return {
            "found": msgspec.to_builtins(self.found),
            "entry": plain(self.entry),
            "file": str(self.file),
            "written": self.written,
            "warnings": list(self.warnings),
        }


def add_site(name: str, address: str, *, named: str, dry_run: bool, **asked: Any) -> AddedSite:
    """Discover a site and write its entry; raises `SiteRefused`, `DiscoveryFailed` and faults of the file."""
    settings = settings_here()
    file = file_here(settings, named=named)
    if any(each.name == name for each in known_sites(file).entries):
        next_step = f"remove it first: pilotage site remove {name}"
        raise SiteRefused("there is a site of this name", subject=f"{file}: {name}", next_step=next_step)
    memory = asked.get("memory", "")
    memory_bytes = parse_bytes(memory) if memory else 0
    if memory_bytes is None:
        raise SiteRefused("this is not a size", subject="--memory", expected=BYTES_FORM, got=memory)
    state = state_folder(settings, folder=Path.cwd()).absolute()
    add_dialects(state)
    from pilotage.adapters.sites.batch import runs_commands
    from pilotage.app.sites.connections import caller_for

    chosen = RequestedValues(
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
        found = discover(caller, chosen=chosen, commands=runs_commands(shape, caller), server=server, why_not=why_not)
    finally:
        caller.close()
    entry = entry_from(name, address, found, chosen)
    warnings = warnings_of(entry, found)
    text = text_of(entry, file) if dry_run else add_entry(file, entry)
    return AddedSite(found, entry, file, text, written=not dry_run, warnings=warnings)


def _server(entry: SiteEntry, state: Path, settings: Settings) -> tuple[str, str]:
    """The address at which pilots of a site would reach the service, empty if none runs; and why they cannot."""
    from pilotage.app.sites.connections import server_for

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
    """Remove a site's entry from its file, and return the file. Raises `SiteRefused`."""
    file = named_sites(settings_here(), named).file
    remove_entry(file, name)
    return file


def test_site(name: str, *, named: str, seconds_max: float, tell: Callable[[Hop], None]) -> tuple[bool, Sequence[Hop]]:
    """Test a site with one real pilot; whether all hops passed, and the result of each."""
    from pilotage.app.site_setup.testing import SiteTest

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


# The agent in one file, to be copied to a cluster by hand: make it, add dialects, and give it a token.


def agent_command(words: Sequence[str]) -> list[str]:
    """The command that starts a site agent on this computer, from an archive in the state folder."""
    from pilotage.adapters.sites.zipapp import build_in

    state = _state()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    add_dialects(state)
    file = build_in(state)
    return [sys.executable, "-I", "-S", str(file), "site", *words]


def write_agent_token(name: str, file: Path) -> Path:
    """Write the token of a site's agent; raises `SiteRefused` for a site that is not configured here."""
    from pilotage.app.service.credentials import tokens_of

    settings = settings_here()
    known_sites(file_here(settings)).entry(name)
    token = tokens_of(_state(), settings).for_site_agent(name)
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(f"{token}\n")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return file.absolute()


def pack_here(files: Sequence[Path], output: Path | None) -> Packed:
    """Pack dialects for this project, and write the agent's archive; raises `BadDialect`."""
    from pilotage.adapters.sites.zipapp import build

    state = _state()
    if files:
        packed = pack([file.absolute() for file in files], state=state)
        if output is None:
            return packed
        return Packed(dialects=packed.dialects, folder=packed.folder, archive=str(build(output.absolute())))
    assert output is not None
    add_dialects(state)
    return Packed(dialects=(), folder=str(state / DIALECTS_FOLDER), archive=str(build(output.absolute())))


def _state() -> Path:
    return state_folder(settings_here(), folder=Path.cwd()).absolute()
