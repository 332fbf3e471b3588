"""Who speaks, about what, to whom: found in the environment of a running package, or said by the caller."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.agent.errors import BadEvent, BadSetting
from pilotage.agent.tls import CA_FILE_VARIABLE

COUNTER_MAX = 2**53 - 1
TIME_MAX_SECONDS = 253_402_300_800.0  # the year 10000

_TYPE = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PACKAGE = re.compile(r"[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Subject(NamedTuple):
    """What an event is about: a job, a package of it, an attempt at that, or a pilot, or a site, or the service."""

    job: str | None = None
    package: str | None = None
    attempt: int | None = None
    pilot: str | None = None
    site: str | None = None

    def check(self) -> None:
        """Raise `BadEvent` where the parts are not written as they must be or do not fit together."""
        for name, pattern in (("job", _JOB), ("package", _PACKAGE), ("pilot", _NAME), ("site", _NAME)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
                raise BadEvent(f"the {name} is not written as it must be", expected=pattern.pattern, got=repr(value))
        if self.attempt is not None:
            check_counter("attempt", self.attempt)
        parts = [name for name in self._fields if getattr(self, name) is not None]
        if parts not in ([], ["job"], ["job", "package"], ["job", "package", "attempt"], ["pilot"], ["site"]):
            raise BadEvent(
                "the parts of the subject do not fit together",
                expected="job, job and package, job and package and attempt, pilot, site, or none of them",
                got=", ".join(parts),
            )

    def over(self, surroundings: Subject) -> Subject:
        """The subject meant, with what it leaves open above its first part taken from the surroundings."""
        if self.pilot is not None or self.site is not None or self.job is not None:
            return self
        if self.package is not None:
            return self._replace(job=surroundings.job)
        if self.attempt is not None:
            return self._replace(job=surroundings.job, package=surroundings.package)
        return surroundings


class Surroundings(NamedTuple):
    """What the environment of a running package says."""

    server: str | None
    token: str | None
    token_file: str | None
    ca_file: str
    subject: Subject
    epoch: int
    seen: int  # the position of the book that was known when the attempt was given out


def read_environment(environment: dict[str, str]) -> Surroundings:
    """What the PILOTAGE_* variables say; raises `BadSetting` that names the variable where one says nonsense."""
    said = {name: environment.get(f"PILOTAGE_{name}") or None for name in ("JOB", "PACKAGE", "ATTEMPT", "EPOCH")}
    counters = {}
    for name in ("ATTEMPT", "EPOCH"):
        text = said[name]
        if text is not None and not (text.isdigit() and 1 <= int(text[:20]) <= COUNTER_MAX):
            raise BadSetting("not a number from 1 on", subject=f"PILOTAGE_{name}", got=repr(text))
        counters[name] = None if text is None else int(text)
    subject = Subject(said["JOB"], said["PACKAGE"], counters["ATTEMPT"])
    seen = environment.get("PILOTAGE_SEEN", "")
    try:
        subject.check()
    except BadEvent as error:
        raise BadSetting(
            error.what, subject="PILOTAGE_JOB, _PACKAGE, _ATTEMPT", expected=error.expected, got=error.got
        ) from error
    return Surroundings(
        server=environment.get("PILOTAGE_SERVER") or None,
        token=environment.get("PILOTAGE_TOKEN") or None,
        token_file=environment.get("PILOTAGE_TOKEN_FILE") or None,
        ca_file=environment.get(CA_FILE_VARIABLE, ""),
        subject=subject,
        epoch=counters["EPOCH"] or 1,
        seen=int(seen[:16]) if seen.isdigit() else 0,
    )


def check_type(event_type: Any) -> None:
    """Raise `BadEvent` where this is no name of an event type."""
    if not (isinstance(event_type, str) and _TYPE.fullmatch(event_type)):
        raise BadEvent("not the name of an event type", expected="a name such as AttemptStarted", got=repr(event_type))


def check_tag(name: Any, value: Any) -> None:
    """Raise `BadEvent` where a tag's name or value is not what a tag may have."""
    if not (isinstance(name, str) and _TAG.fullmatch(name)):
        raise BadEvent("not the name of a tag", expected=_TAG.pattern, got=repr(name))
    if not isinstance(value, str):
        raise BadEvent("the value of a tag is text", subject=name, expected="a string", got=repr(value))


def check_counter(name: str, value: Any) -> None:
    """Raise `BadEvent` where this is no number that counts from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= COUNTER_MAX:
        raise BadEvent(f"the {name} is not a number that counts from 1", got=repr(value))


def check_time(moment: Any) -> None:
    """Raise `BadEvent` where this is no time in seconds since 1970."""
    is_number = isinstance(moment, (int, float)) and not isinstance(moment, bool)
    if not is_number or not math.isfinite(moment) or not 0 <= moment < TIME_MAX_SECONDS:
        raise BadEvent("not a time", expected="seconds since 1970, UTC", got=repr(moment))


class TokenSource:
    """Says which token to show; a token's file is read each time, since tokens are renewed."""

    def __init__(self, *, token: str | None, token_file: str | None) -> None:
        """Take a token, or the file that holds it, or neither."""
        self._token = token
        self._file = token_file

    def __call__(self) -> str:
        """The token, empty where there is none; raises `BadSetting` where it cannot be read or used."""
        token, where = self._token, "the token"
        if token is None and self._file:
            where = self._file
            try:
                token = Path(self._file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise BadSetting(f"the token's file cannot be read: {error}", subject=where) from error
        if token and not _TOKEN.fullmatch(token):
            raise BadSetting("the token has characters that no token has", subject=where)
        return token or ""
