"""Where a book is kept: `sqlite:DIR` or `postgresql://…`, and how to show that without its password."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from pilotage.model.errors import PilotageError, did_you_mean

JournalKind = Literal["sqlite", "postgresql"]

HIDDEN = "***"
_POSTGRESQL = re.compile(r"postgres(?:ql)?://(.*)", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"((?:ssl)?password=)[^&\s]*", re.IGNORECASE)


class BadJournalAddress(PilotageError):
    """The address of a journal cannot be read: write `sqlite:DIR` or `postgresql://USER@HOST/DATABASE`."""


class JournalAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's kind, and what its adapter needs: a folder for SQLite, the whole URL for PostgreSQL.

    `str` and `repr` show it without its password; only `url` has it.
    """

    kind: JournalKind
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
    """Read `sqlite:DIR` or `postgresql://…`; anything else is refused with what was meant."""
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
