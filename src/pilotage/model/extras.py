"""What pilotage is made of besides itself: parts that every installation has, and extras; what is missing is told by name.

Heavy parts are imported only where they are used, so that one that is gone is missed late, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from pilotage.model.errors import PilotageError

PARTS: Mapping[str, str] = {
    "cryptography": "cryptography",
    "httptools": "httptools",
    "jwt": "PyJWT",
    "litestar": "litestar",
    "uvicorn": "uvicorn",
}
"""The modules that a service needs, each with the distribution that brings it; every installation has them."""
EXTRAS: Mapping[str, frozenset[str]] = {"postgres": frozenset({"psycopg"})}
"""The modules that each extra of the distribution brings."""


class MissingPart(PilotageError):
    """Something that every installation of pilotage has is gone: install pilotage again, with `pip install`."""


class MissingExtra(PilotageError):
    """A part of pilotage was used that is not installed: install it with `pip install 'pilotage[EXTRA]'`."""


def missing_parts() -> list[str]:
    """The distributions that pilotage needs and that are not installed; nothing is imported for it."""
    return [distribution for module, distribution in PARTS.items() if not _is_there(module)]


def missing_extra(name: str) -> bool:
    """Whether an extra is not installed."""
    return not all(map(_is_there, EXTRAS[name]))


def refuse_missing_parts() -> None:
    """Raise `MissingPart` where a service could not be started for want of a module."""
    missing = missing_parts()
    if missing:
        raise _missing(f"a service needs {' and '.join(missing)}, which {_verb(missing)} not installed", missing)


@contextmanager
def part(*, purpose: str) -> Iterator[None]:
    """Import modules of `PARTS` inside this; `purpose` says what for, such as "to serve the book"."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in PARTS:
            raise
        raise _missing(f"{PARTS[module]} is needed {purpose}: {error}", [PARTS[module]]) from error


@contextmanager
def extra(name: str, *, purpose: str) -> Iterator[None]:
    """Import an extra's modules inside this; `purpose` says what for, such as "to keep the book in PostgreSQL"."""
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


def install_again(missing: list[str]) -> str:
    """What to do where distributions are missing."""
    return f"install {'it' if len(missing) == 1 else 'them'}: pip install {' '.join(missing)}"


def _missing(told: str, missing: list[str]) -> MissingPart:
    return MissingPart(told, next_step=install_again(missing))


def _verb(missing: list[str]) -> str:
    return "is" if len(missing) == 1 else "are"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # what is half removed, or barred
        return False
