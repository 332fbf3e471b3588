"""Heavy parts are extras, imported only where they are used: who misses one is told its name, not shown an import error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pilotage.model.errors import PilotageError

EXTRAS: Mapping[str, frozenset[str]] = {
    "postgres": frozenset({"psycopg"}),
    "server": frozenset({"cryptography", "httptools", "jwt", "litestar", "uvicorn"}),
}
"""The modules that each extra of the distribution brings."""


class MissingExtra(PilotageError):
    """A part of pilotage was used that is not installed: install it with `pip install 'pilotage[EXTRA]'`."""


@contextmanager
def extra(name: str, *, purpose: str) -> Iterator[None]:
    """Import an extra's modules inside this; `purpose` says what for, such as "to serve the book"."""
    try:
        yield
    except ImportError as error:
        # A module too old for us is found by its name too. psycopg without the library it wraps names none.
        if error.name is not None and error.name.partition(".")[0] not in EXTRAS[name]:
            raise
        raise MissingExtra(
            f"a part that is not installed is needed {purpose}",
            got=str(error),
            next_step=f"install it: pip install 'pilotage[{name}]'",
        ) from error
