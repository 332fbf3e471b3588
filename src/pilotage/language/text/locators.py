"""Locators of files as a document writes them: URLs and absolute paths, in which names are percent-encoded but for paths.

Checked before anything is fetched. A locator is stored with the job and shown to everyone, so it never holds a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

REMOTE_SCHEMES = ("s3", "sftp", "http", "https")
"""Schemes of stores that no package can read by itself."""
CONTENT = "store:"
"""The content store of the service: a folder whose files are named by their content."""
SCHEMES = ("file", *REMOTE_SCHEMES, "store", "job", "cache")
"""The schemes that are built in; installed stores may have others."""

_CONTENT_NAME = re.compile(r"store:[0-9a-f]{64}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#]*@")
_SIGNED = re.compile(
    r"[?&](x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|signature|sig|"
    r"(?:access_|auth_|id_|private_)?token|jwt|password|passwd|secret|api_?key)=",
    re.IGNORECASE,
)
_SECRETS = "credentials belong to the settings: see [stores.NAME]"
_AS_IT_IS = re.compile(r"[A-Za-z0-9_.~/-]*")
_SHOWN_MAX = 200


class LocatorFault(NamedTuple):
    """What is wrong with a locator, and what to do."""

    code: str
    message: str
    hint: str = ""


def scheme_of(locator: str) -> str:
    """The scheme of a locator; an absolute path is a `file`, and anything else has none."""
    if locator.startswith("/"):
        return "file"
    found = _SCHEME.match(locator)
    return found[1].lower() if found is not None else ""


def locator_fault(locator: str) -> LocatorFault | None:
    """What is wrong with a locator, apart from whether its store exists; a message never repeats a secret."""
    if _PASSWORD.match(locator):
        shown = shown_locator(locator)
        return LocatorFault("secret-in-locator", f"the locator {shown!r} holds a password", _SECRETS)
    signed = _SIGNED.search(locator)
    if signed is not None:
        message = f"the locator {shown_locator(locator)!r} holds a credential, {signed[1]!r}"
        return LocatorFault("secret-in-locator", message, _SECRETS)
    scheme = scheme_of(locator)
    if not scheme:
        hint = "write a URL such as s3://bucket/name, or an absolute path; files of the job's tree need no locator"
        return LocatorFault("bad-locator", f"{shown_locator(locator)!r} is not a locator", hint)
    from pilotage.model.locators import BadLocator, parse_locator  # few documents have locators

    try:
        parse_locator(locator)
    except BadLocator as fault:
        return LocatorFault("bad-locator", f"the locator {shown_locator(locator)!r}: {fault.what}")
    if scheme in REMOTE_SCHEMES and not re.match(r"[^:]+://[^/?#]", locator):
        message = f"the locator {shown_locator(locator)!r} names no {'bucket' if scheme == 's3' else 'host'}"
        return LocatorFault("bad-locator", message, f"write {scheme}://HOST/PATH")
    return None


def input_fault(locator: str) -> LocatorFault | None:
    """What is wrong with the locator of a file that is read; a file in the cache of a site is read from its origin."""
    origin = origin_of(locator)
    if locator.startswith("cache:") and not scheme_of(origin):
        hint = "iterate over {files: PATTERN, site: NAME}, or name the file by its own locator"
        return LocatorFault("bad-locator", f"{shown_locator(locator)!r} names no file in the cache of a site", hint)
    fault = locator_fault(origin)
    if fault is None and scheme_of(origin) == "store" and not _CONTENT_NAME.fullmatch(origin):
        hint = "write store:SHA256, as `pilotage files put FILE` tells it"
        return LocatorFault("bad-locator", f"{shown_locator(origin)!r} names no content by its sha256", hint)
    return fault


def target_fault(locator: str) -> LocatorFault | None:
    """What is wrong with the locator of an output that is stored."""
    fault, scheme = locator_fault(locator), scheme_of(locator)
    if fault is not None or scheme not in ("store", "job", "cache") or locator == CONTENT:
        return fault
    hint = "write a locator of a store; `store:` keeps outputs in the service, each under its checksum"
    return LocatorFault("bad-locator", f"no output can be stored at {shown_locator(locator)!r}", hint)


InstalledSchemes = Callable[[], Collection[str]]
"""The schemes of installed stores; asked for only if a scheme is not built in, since it takes time."""


def shown_locator(locator: str) -> str:
    """A locator for messages: without user, password and query, which may be secrets, and not too long."""
    shown = _PASSWORD.sub(lambda found: f"{found[0].partition('://')[0]}://", locator)
    if not locator.startswith("/"):
        shown = shown.partition("?")[0]
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"


def is_folder(locator: str) -> bool:
    """Whether a locator names a folder, to which names of files are added."""
    return locator.endswith("/") or locator == CONTENT


def locator_of(locator: str, name: str) -> str:
    """The locator of a file: the one given, or, if that names a folder, the one of the name in it."""
    if not is_folder(locator):
        return locator
    if _AS_IT_IS.fullmatch(name) or locator.startswith("/"):
        return locator + name
    from urllib.parse import quote  # 5 ms, and few documents need it

    return locator + quote(name, errors="surrogateescape")


OF_JOB = "job:"
"""How the locators of the outputs of jobs of this service begin: `job:JOB/NAME`."""


def job_locator(job: str, name: str) -> str:
    """The locator of an output of a job, by its name in the manifest."""
    return locator_of(f"{OF_JOB}{job}/", name)


def job_of(locator: str) -> str:
    """The job of which a file is an output, also of one in the cache of a site; empty for any other file."""
    origin = origin_of(locator)
    return origin[len(OF_JOB) :].partition("/")[0] if origin.startswith(OF_JOB) else ""


def name_in_locator(locator: str) -> str:
    """The last part of a locator, decoded: the name of its file."""
    last = locator.rstrip("/")
    if locator.startswith("/"):
        return last.rpartition("/")[2]
    last = re.split(r"[/:]", last.partition("?")[0])[-1]
    if "%" not in last:
        return last
    from urllib.parse import unquote

    decoded = unquote(last, errors="surrogateescape")
    return last if "/" in decoded or "\0" in decoded else decoded


# Files in the cache of a site, as values of lists: `cache:SITE/LOCATOR#bytes=SIZE`. A value holds all that is asked of it,
# so that lists of them are recorded, grouped and combined as any others.

_CACHED = re.compile(r"cache:([^/]*)/(.*)#bytes=([0-9]+)", re.DOTALL)


def cached_value(*, site: str, locator: str, size_bytes: int) -> str:
    """The value that stands for a file in the cache of a site."""
    return f"cache:{site}/{locator}#bytes={size_bytes}"


def is_cached_value(value: str) -> bool:
    """Whether a value stands for a file in the cache of a site."""
    return value.startswith("cache:") and _CACHED.fullmatch(value) is not None


def origin_of(locator: str) -> str:
    """Where a file can be had again: the locator itself, also of a file in the cache of a site."""
    found = _CACHED.fullmatch(locator) if locator.startswith("cache:") else None
    if found is not None:
        return found[2]
    return locator.partition("/")[2] if locator.startswith("cache:") else locator


def cached_part(value: str, part: str) -> str | None:
    """The `name` or `size` of a file in the cache of a site; None for any other value."""
    found = _CACHED.fullmatch(value)
    if found is None:
        return None
    return found[3] if part == "size" else name_in_locator(found[2])
