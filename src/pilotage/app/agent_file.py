"""The agent in one file, for those who carry it to a cluster by hand: made, packed with dialects, and given a token."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotage.adapters.settings_files import state_folder
from pilotage.app.book import settings_here
from pilotage.app.dialects import DIALECTS_FOLDER, Packed, add_dialects, pack
from pilotage.app.site_entries import file_here, known_sites


def agent_command(words: Sequence[str]) -> list[str]:
    """The words that start the agent of a site on this computer, from a file that is made in the state folder."""
    from pilotage.adapters.sites.zipapp import build_in

    state = _state()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    add_dialects(state)
    file = build_in(state)
    return [sys.executable, "-I", "-S", str(file), "site", *words]


def write_agent_token(name: str, file: Path) -> Path:
    """Write the token of the agent of a site that is written down here; raises `SiteRefused` for another."""
    from pilotage.app.tokens import tokens_of

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
    """Pack dialects for this project, and write the agent to a file; raises `BadDialect`."""
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
