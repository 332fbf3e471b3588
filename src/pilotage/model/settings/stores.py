"""The settings of stores, `[stores.NAME]`, and of the files that move between them and sites, `[files]`."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def _doc(text: str) -> Meta:
    return Meta(description=text)


Connections = Annotated[int, Meta(ge=1, le=1000)]
Rate = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Seconds = Annotated[float, Meta(ge=0.1)]
NoSeconds = Annotated[float, Meta(ge=0)]
LeastRate = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Tries = Annotated[int, Meta(ge=1, le=1000)]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is reached. It holds the paths of credentials, never a credential."""

    name: str = ""
    url: Annotated[
        str, _doc("The store has all locators that start with this, such as `s3://bucket/run3`; the longest wins.")
    ] = ""
    concurrency: Annotated[Connections, _doc("Transfers with this store at once.")] = 8
    bytes_per_second: Annotated[Rate, _doc("All transfers with this store together; 0: no limit.")] = 0
    timeout_seconds: Annotated[Seconds, _doc("A store that is silent for so long is unreachable.")] = 60.0
    token_file: Annotated[str, _doc("http: the file of a bearer token.")] = ""
    user: Annotated[str, _doc("http: the user of a password.")] = ""
    password_file: Annotated[str, _doc("http: the file of the password.")] = ""
    ca_file: Annotated[str, _doc("http, s3: certificates of authorities to trust besides those of the system.")] = ""
    endpoint: Annotated[str, _doc("s3: the URL of a server other than Amazon's.")] = ""
    region: Annotated[str, _doc("s3: the region; none: `AWS_REGION`, or us-east-1.")] = ""
    credentials_file: Annotated[
        str,
        _doc("s3: a file such as `~/.aws/credentials`; none: the environment, `~/.aws/credentials`, or the instance."),
    ] = ""
    profile: Annotated[str, _doc("s3: the section of that file.")] = "default"
    identity_file: Annotated[str, _doc("sftp: the key, instead of those of ssh's own configuration.")] = ""
    ssh_config: Annotated[str, _doc("sftp: the configuration of ssh, instead of `~/.ssh/config`.")] = ""


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are brought to sites, and outputs that are copied to stores."""

    archive: Annotated[
        tuple[str, ...], _doc("The stores that outputs with the disposition `store` are copied to, in this order.")
    ] = ()
    transfer_seconds_min: Annotated[Seconds, _doc("The time limit of a transfer of a small file.")] = 900.0
    transfer_bytes_per_second_min: Annotated[
        LeastRate, _doc("A large file has the time that it needs at this rate, if that is longer.")
    ] = 150_000
    transfer_tries_max: Annotated[
        Tries, _doc("Tries of a transfer in a row without progress, with longer and longer pauses, up to a minute.")
    ] = 8
    visible_seconds: Annotated[
        NoSeconds, _doc("How long a node waits for an input that exists and that a network file system shows late.")
    ] = 60.0


def transfer_seconds(files: FilesSettings, *, size_bytes: int) -> float:
    """The time limit of a transfer of so many bytes."""
    return max(files.transfer_seconds_min, size_bytes / files.transfer_bytes_per_second_min)


_FILES = ("token_file", "password_file", "ca_file", "credentials_file", "identity_file", "ssh_config")
_HTTP_KEYS = frozenset({"token_file", "user", "password_file", "ca_file"})
_KEYS: Mapping[str, frozenset[str]] = {
    "file": frozenset(),
    "http": _HTTP_KEYS,
    "https": _HTTP_KEYS,
    "store": frozenset(),
    "s3": frozenset({"ca_file", "endpoint", "region", "credentials_file", "profile"}),
    "sftp": frozenset({"identity_file", "ssh_config"}),
}
_KEYS_OF_KINDS = frozenset[str]().union(*_KEYS.values())


def store_faults(store: StoreSettings) -> Iterator[tuple[str, str]]:
    """The faults of the settings of one store: the key, and what is wrong."""
    if not STORE_NAME.fullmatch(store.name):
        yield "", "the name of a store has small letters, digits, - and _"
    from pilotage.model.locators import BadLocator, parse_locator  # most settings name no store

    try:
        scheme = parse_locator(store.url).scheme
    except BadLocator as fault:
        yield "url", "a store needs the url of its files" if not store.url else fault.what
        return
    default = StoreSettings()
    for key in sorted(_KEYS_OF_KINDS - _KEYS.get(scheme, _KEYS_OF_KINDS)):
        if getattr(store, key) != getattr(default, key):
            yield key, f"a store of {scheme} locators has no {key}"
    if bool(store.user) != bool(store.password_file):
        yield "user" if store.user else "password_file", "user and password_file belong together"
    if store.token_file and store.password_file:
        yield "token_file", "give either a token or a password"
    if store.endpoint and not store.endpoint.startswith(("http://", "https://")):
        yield "endpoint", f"expected a URL such as https://s3.example.org, got {store.endpoint!r}"
    for key in _FILES:
        path = getattr(store, key)
        if path and not path.startswith(("/", "~/")):
            yield key, f"expected an absolute path, or one that begins with ~/, got {path!r}"
