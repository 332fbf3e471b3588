"""Objects of Amazon S3 and of every server that speaks its protocol, by `s3://BUCKET/KEY`; needs `pilotage[s3]`.

Credentials come from the file of the settings, else from the variables `AWS_…`, else from `~/.aws/credentials`, else from
the instance or container that this runs in. One that is refused is read again, once.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from pilotage.adapters.stores.contents import open_source, pieces_of, refuse_changed, refuse_other, sha256_of
from pilotage.model.errors import extra
from pilotage.model.locators import BadLocator, locator_below, parse_locator, shown_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    CHUNK_BYTES,
    AccessDenied,
    AlreadyInStore,
    CredentialExpired,
    FileChanged,
    NotInStore,
    PresignedRequest,
    StoreFull,
    StoreObject,
    StoreUnreachable,
)

if TYPE_CHECKING:
    from obstore.store import S3Credential
    from obstore.store import S3Store as Bucket

PART_BYTES = 8 << 20
"""A larger file is sent in parts."""
PARTS_MAX = 9_000  # S3 takes 10,000
PARTS_AT_ONCE = 4
PRESIGNED_SECONDS_MAX = 7 * 86_400
_LEAST_RATE = 50_000  # bytes per second at which a part may be sent
_RETRIES = 2
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{0,300})")
_STATUS = re.compile(r"status code: (\d{3})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EXPIRED = frozenset({
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken",
    "InvalidAccessKeyId", "SignatureDoesNotMatch",
})  # fmt: skip
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "ServiceQuotaExceededException", "EntityTooLarge"})
_INSTANCE = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254")
_PROVIDER = "credential provider: StoreError: "  # before the message of `_read_credential`
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

Result = TypeVar("Result")
Use = Literal["read", "write"]


class _Refused(StoreError):
    """The credential was refused; it may have been renewed since it was read."""


class _NoCredential(AccessDenied):
    """No credential was found."""


class S3Store:
    """Objects behind `s3` locators. A line break in a name, which few servers take in a key, is kept as `%0A`."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._buckets: dict[tuple[str, Use], Bucket] = {}

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator."""
        bucket, key = _parsed(locator)
        return self._attempt(bucket, "write", lambda client: _look(client, key, locator)) if key else None

    def is_folder(self, locator: str) -> bool:
        """Whether objects are below it."""
        bucket, key = _parsed(locator)
        return self._attempt(bucket, "write", lambda client: _is_prefix(client, key, locator))

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on."""
        bucket, key = _parsed(locator, needs_key=True)
        result = self._attempt(bucket, "read", lambda client: _get(client, key, offset, version, locator))
        if result is None:
            return
        left = result.range[1] - result.range[0]
        with _errors(locator):
            for some in result.stream(min_chunk_size=CHUNK_BYTES // 2):
                content = memoryview(some)
                left -= len(content)
                for start in range(0, len(content), CHUNK_BYTES):
                    yield bytes(content[start : start + CHUNK_BYTES])
        if left:
            raise StoreUnreachable("the content ended early", subject=shown_locator(locator))

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of an object; it is read for that."""
        return sha256_of(self.read(locator, version=version))

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The objects below a prefix, sorted by locator."""
        bucket, key = _parsed(prefix)
        return iter(self._attempt(bucket, "write", lambda client: _listed(client, key.rstrip("/"), prefix)))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Send a file: in one request that the store refuses if there is an object, or in parts."""
        bucket, key = _parsed(locator, needs_key=True)
        with open_source(source) as reading:

            def send(client: Bucket) -> None:
                refuse_other(_look(client, key, locator), replaces, locator)
                reading.seek(0)
                size_bytes = os.fstat(reading.fileno()).st_size
                send_it = _put_whole if size_bytes <= PART_BYTES else _put_parts
                send_it(client, key, reading, size_bytes=size_bytes, replaces=replaces, locator=locator, sent=sent)

            self._attempt(bucket, "write", send)
        found = self.stat(locator)
        if found is None:
            raise NotInStore("the object was removed at once", subject=shown_locator(locator))
        return found

    def delete(self, locator: str) -> bool:
        """Remove an object."""
        bucket, key = _parsed(locator)

        def remove(client: Bucket) -> bool:
            import obstore

            if _look(client, key, locator) is None:
                return False
            with _errors(locator):
                obstore.delete(client, key)
            return True

        return self._attempt(bucket, "write", remove) if key else False

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """A URL that reads an object."""
        return self._presigned("GET", locator, seconds, {})

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """A URL that writes an object, unless there is one."""
        return self._presigned("PUT", locator, seconds, {"Content-Type": content_type, "If-None-Match": "*"})

    def close(self) -> None:
        """Forget the connections, and with them the credentials."""
        with self._guard:
            self._buckets.clear()

    def _presigned(
        self, method: Literal["GET", "PUT"], locator: str, seconds: float, headers: dict[str, str]
    ) -> PresignedRequest:
        import obstore

        bucket, key = _parsed(locator, needs_key=True)
        lifetime = min(max(1, int(seconds)), PRESIGNED_SECONDS_MAX)

        def sign(client: Bucket) -> str:
            with _errors(locator):
                return str(obstore.sign(client, method, key, timedelta(seconds=lifetime)))

        url = self._attempt(bucket, "read", sign)
        return PresignedRequest(method=method, url=url, headers=headers, expires_at=time.time() + lifetime)

    def _attempt(self, bucket: str, use: Use, act: Callable[[Bucket], Result]) -> Result:
        """Do something with a bucket; if its credential is refused, once more with the credential read again."""
        try:
            return act(self._client(bucket, use))
        except _NoCredential as fault:
            if self._settings.url:
                raise
            raise AccessDenied(
                f"no [stores.NAME] describes the bucket, and {fault.what}",
                subject=fault.subject,
                next_step=f'write [stores.NAME] with url = "s3://{bucket}" and its credentials_file, and the endpoint of a server other than Amazon\'s',
            ) from fault
        except _Refused:
            self.close()
        try:
            return act(self._client(bucket, use))
        except _Refused as fault:
            raise CredentialExpired(
                fault.what, subject=fault.subject, next_step=f"renew it in {self._credential_source()}"
            ) from fault

    def _client(self, bucket: str, use: Use) -> Bucket:
        with self._guard:
            if (bucket, use) not in self._buckets:
                self._buckets[bucket, use] = self._connect(bucket, use)
            return self._buckets[bucket, use]

    def _connect(self, bucket: str, use: Use) -> Bucket:
        with extra("s3", purpose="for files behind s3: locators"):
            from obstore.store import S3Store as Bucket

        settings = self._settings
        silent = timedelta(seconds=settings.timeout_seconds)
        # A read may take as long as its file is large; nothing else does.
        whole = timedelta(days=7) if use == "read" else max(silent, timedelta(seconds=PART_BYTES / _LEAST_RATE))
        config: dict[str, Any] = {"disable_bulk_delete": True}  # which not every server has
        options: dict[str, Any] = {"connect_timeout": min(silent, timedelta(seconds=15)), "read_timeout": silent}
        options |= {"timeout": whole, "allow_http": settings.endpoint.startswith("http://")}
        if settings.endpoint:
            config["endpoint"] = settings.endpoint
        if settings.region:
            config["region"] = settings.region
        if settings.ca_file:
            options["root_certificate"] = _content_of(settings.ca_file)
        file = self._credentials_file()
        given = {"credential_provider": lambda: _read_credential(file, self._profile())} if file else {}
        retry = {"max_retries": _RETRIES, "retry_timeout": silent}
        try:
            return Bucket(bucket, config=config, client_options=options, retry_config=retry, **given)
        except Exception as fault:  # obstore's own base class is not that of all its errors
            raise StoreError(f"the store cannot be used: {_first_line(fault)}", subject=f"s3://{bucket}") from fault

    def _credentials_file(self) -> Path | None:
        """The file of the credentials; None if obstore finds them without one."""
        if self._settings.credentials_file:
            return Path(self._settings.credentials_file).expanduser()
        if os.environ.get("AWS_ACCESS_KEY_ID"):
            return None
        shared = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
        return shared if shared.is_file() else None

    def _profile(self) -> str:
        chosen = self._settings.profile
        return os.environ.get("AWS_PROFILE", chosen) if chosen == "default" else chosen

    def _credential_source(self) -> str:
        file = self._credentials_file()
        if file is not None:
            return str(file)
        return "the environment" if os.environ.get("AWS_ACCESS_KEY_ID") else "the role of this instance"


def s3_store(settings: StoreSettings) -> S3Store:
    """The store of the scheme `s3`."""
    return S3Store(settings)


def _parsed(locator: str, *, needs_key: bool = False) -> tuple[str, str]:
    """The bucket and the key of a locator."""
    try:
        parsed = parse_locator(locator)
    except BadLocator as fault:
        raise StoreError(fault.what, subject=fault.subject, expected="s3://BUCKET/KEY") from fault
    key = parsed.path.removeprefix("/")
    if parsed.scheme != "s3" or not _BUCKET.fullmatch(parsed.host) or (needs_key and not key):
        raise StoreError("not an object of S3", subject=shown_locator(locator), expected="s3://BUCKET/KEY")
    if any(part in ("", ".", "..") for part in key.rstrip("/").split("/")) and key.rstrip("/"):
        raise StoreError("a key has no empty part, and none that is . or ..", subject=shown_locator(locator))
    try:
        key.encode()
    except UnicodeEncodeError as fault:
        raise StoreError("a key must be UTF-8", subject=shown_locator(locator)) from fault
    return parsed.host, _CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", key)


def _object(locator: str, found: Any) -> StoreObject:
    return StoreObject(
        locator=locator,
        size_bytes=found["size"],
        modified_at=found["last_modified"].timestamp(),
        version=found["e_tag"] or f"{found['last_modified'].timestamp()}-{found['size']}",
    )


def _look(client: Bucket, key: str, locator: str) -> StoreObject | None:
    import obstore

    try:
        with _errors(locator, probe=lambda: obstore.get_range(client, key, start=0, length=1)):
            found = obstore.head(client, key)
    except NotInStore:
        return None
    return _object(locator, found)


def _is_prefix(client: Bucket, key: str, locator: str) -> bool:
    import obstore

    with _errors(locator):
        return any(obstore.list(client, f"{key.rstrip('/')}/", chunk_size=1))


def _get(client: Bucket, key: str, offset: int, version: str, locator: str) -> Any:
    """An answer with the content from an offset on; None if that is the end."""
    import obstore

    if offset:
        found = _look(client, key, locator)
        if found is None:
            raise NotInStore("no such object", subject=shown_locator(locator))
        if version and found.version != version:
            raise FileChanged("the object is another one than before", subject=shown_locator(locator))
        if offset >= found.size_bytes:
            return None
    with _errors(locator):
        result = obstore.get(client, key, options={"range": {"offset": offset}} if offset else None)
    if version and _object(locator, result.meta).version != version:
        raise FileChanged("the object is another one than before", subject=shown_locator(locator))
    return result


def _listed(client: Bucket, prefix: str, base: str) -> list[StoreObject]:
    import obstore

    with _errors(base):
        found = [one for some in obstore.list(client, prefix=prefix or None) for one in some]
    skipped = len(prefix) + 1 if prefix else 0
    objects = [_object(locator_below(base, one["path"][skipped:]), one) for one in found]
    return sorted(objects, key=lambda each: each.locator)


def _put_whole(
    client: Bucket,
    key: str,
    reading: BinaryIO,
    *,
    size_bytes: int,
    replaces: str,
    locator: str,
    sent: Callable[[int], None],
) -> None:
    """One request, which is atomic, and refused by the store itself if there is another object by now."""
    import obstore

    content = b"".join(pieces_of(reading, sent=sent))
    refuse_changed(reading, size_bytes=size_bytes, locator=locator)
    try:
        with _errors(locator):
            mode: Any = {"e_tag": replaces} if replaces else "create"
            obstore.put(client, key, content, mode=mode, use_multipart=False)
    except NotInStore as fault:
        if replaces and "bucket" not in fault.what:
            raise AlreadyInStore("the object to replace is gone", subject=shown_locator(locator)) from fault
        raise


def _put_parts(
    client: Bucket,
    key: str,
    reading: BinaryIO,
    *,
    size_bytes: int,
    replaces: str,
    locator: str,
    sent: Callable[[int], None],
) -> None:
    """Parts, some at once, that become an object at the end; the store is asked before that whether there is another."""
    import obstore

    part_bytes = max(PART_BYTES, size_bytes // PARTS_MAX + 1)
    # A writer that is left by an error removes its parts.
    with (
        _errors(locator),
        obstore.open_writer(client, key, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE) as writer,
    ):
        for piece in pieces_of(reading, sent=sent):
            writer.write(piece)
        refuse_changed(reading, size_bytes=size_bytes, locator=locator)
        refuse_other(_look(client, key, locator), replaces, locator)


class _errors:  # noqa: N801
    """Turns an error of obstore into one of the port; `probe` asks again in a way that tells why access is denied."""

    def __init__(self, locator: str, *, probe: Callable[[], object] | None = None) -> None:
        self._locator = locator
        self._probe = probe

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        from obstore.exceptions import BaseError

        if fault is None or not isinstance(fault, (BaseError, OSError)) or isinstance(fault, StoreError):
            return
        told = _told(fault, self._locator)
        if self._probe is not None and type(told) in (AccessDenied, StoreError):
            # The answer to HEAD has no body, and says nothing but 400 or 403.
            with _errors(self._locator):
                self._probe()
        raise told from fault


def _told(fault: BaseException, locator: str) -> StoreError:
    """The error of the port for one of obstore, which has the answer of the server in its text."""
    from obstore.exceptions import AlreadyExistsError, NotModifiedError, PreconditionError, UnauthenticatedError

    text, subject = str(fault), shown_locator(locator)
    code = found[1] if (found := _CODE.search(text)) else ""
    message = found[1] if (found := _MESSAGE.search(text)) else ""
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    shown = f"{code or status}: {message}" if message else str(code or status)
    if code in _EXPIRED or status == 401 or "has expired" in message:
        return _Refused(f"the store refused the credential: {shown}", subject=subject)
    if isinstance(fault, (AlreadyExistsError, PreconditionError, NotModifiedError)):
        return AlreadyInStore("another object is there, and is not replaced", subject=subject)
    if isinstance(fault, FileNotFoundError):
        return NotInStore("no such bucket" if code == "NoSuchBucket" else "no such object", subject=subject)
    if (own := _first_line(fault).partition(_PROVIDER)[2]) or isinstance(fault, UnauthenticatedError):
        return _NoCredential(own or "there is no credential", subject=subject)
    if any(address in text for address in _INSTANCE):
        return _NoCredential(
            "there is no credential", subject=subject, next_step="name a credentials_file, or set AWS_ACCESS_KEY_ID"
        )
    if code in _FULL or status == 507:
        return StoreFull(f"the store has no room: {shown}", subject=subject)
    if status == 403:
        return AccessDenied(f"the store refused: {shown}", subject=subject)
    if 400 <= status < 500 and status not in (408, 429):
        return StoreError(f"the store answered {shown}", subject=subject)
    return StoreUnreachable(f"the store did not answer: {shown if status else _first_line(fault)}", subject=subject)


def _first_line(fault: BaseException) -> str:
    return str(fault).strip().partition("\n")[0][:300]


def _content_of(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as fault:
        raise StoreError(f"it cannot be read: {fault.strerror}", subject=path) from fault


def _read_credential(file: Path, profile: str) -> S3Credential:
    """The credential of a profile in a file such as `~/.aws/credentials`."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with file.open(encoding="utf-8") as lines:
            parser.read_file(lines)
        section = parser[profile]
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token"),
            # obstore asks again when less than five minutes are left: a renewed file is noticed within a minute.
            "expires_at": datetime.now(UTC) + timedelta(minutes=6),
        }
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as fault:
        # Not the text of the error: it may quote a line with a secret.
        raise StoreError(
            f"it has no credential for the profile {profile!r} ({type(fault).__name__})", subject=str(file)
        ) from None
