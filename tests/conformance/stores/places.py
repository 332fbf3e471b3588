"""Real stores to try the suite on, each with a back door: a way to its files beside the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from pilotage.adapters.stores.content_store import CONTENT, FolderContent
from pilotage.adapters.stores.kept_content import KeptContent
from pilotage.app import adapter_registry
from pilotage.app.store_registry import StoreOf, StoreRegistry
from pilotage.model.locators import locator_below
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import Store
from tests.engines.s3 import S3Server


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A store with an empty folder in it."""

    base: str  # the locator of that folder
    settings: StoreSettings
    store: Store
    write: Callable[[str, bytes], None]  # through the back door
    content: Callable[[], dict[str, bytes]]  # of every file, through the back door
    presigns: bool = False
    own: Mapping[str, StoreOf] = {}  # how the program reaches it, if it is the service's own

    @property
    def names_by_content(self) -> bool:
        """Whether it gives files their names: then they are in no folders, and none is ever replaced."""
        return bool(self.own)

    def named(self, name: str, content: bytes) -> str:
        """What a file is called there, if it is to be called this."""
        return sha256(content).hexdigest() if self.names_by_content else name

    def at(self, name: str, content: bytes = b"data") -> str:
        """The locator of a file in that folder; the content counts only where it gives the name."""
        if self.names_by_content:
            return f"{self.base}{self.named(name, content)}"
        return locator_below(self.base, name)


@contextmanager
def place_in(folder: Path, base: str, settings: StoreSettings) -> Iterator[Place]:
    """A place whose files lie in a folder of this computer."""

    def write(name: str, content: bytes) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    def content() -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    with found(base, settings) as store:
        yield Place(base=base, settings=settings, store=store, write=write, content=content)


USER = "ann"


@contextmanager
def content_place(folder: Path) -> Iterator[Place]:
    """What a user keeps in the content store of a service."""
    content = FolderContent(folder)

    def write(_: str, data: bytes) -> None:
        name = sha256(data).hexdigest()
        content.append(name, data, by=USER, offset=0, size_bytes=len(data))
        content.complete(name, by=USER, size_bytes=len(data))
        assert content.keep(name, by=USER)

    def everything() -> dict[str, bytes]:
        files = (folder / CONTENT).glob("??/" + "?" * 64)
        return {path.name: path.read_bytes() for path in files if content.is_kept(path.name, by=USER)}

    store = KeptContent(content, user=USER)
    own = {"store": lambda user: KeptContent(content, user=user)}
    yield Place(base="store:", settings=StoreSettings(), store=store, write=write, content=everything, own=own)


@contextmanager
def found(base: str, settings: StoreSettings) -> Iterator[Store]:
    """The store of a locator, found as the program finds it."""
    registry = StoreRegistry([msgspec.structs.replace(settings, name="tried", url=base)])
    try:
        yield registry.find(base).store
    finally:
        registry.close()


CREDENTIALS = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n"


@contextmanager
def bucket_place(server: S3Server, folder: Path) -> Iterator[Place]:
    """A place in a bucket of its own."""
    bucket = f"bucket-{uuid4().hex}"
    server.bucket(bucket)
    (folder / "credentials").write_text(CREDENTIALS)
    settings = StoreSettings(endpoint=server.endpoint, region="us-east-1", credentials_file=str(folder / "credentials"))
    base = f"s3://{bucket}/in/there"
    before = "in/there/"

    def content() -> dict[str, bytes]:
        assert server.uploads(bucket) == 0
        return {key.removeprefix(before): each for key, each in server.content(bucket).items()}

    with found(base, settings) as store:
        yield Place(
            base=base,
            settings=settings,
            store=store,
            write=lambda name, content: server.write(bucket, f"{before}{name}", content),
            content=content,
            presigns=True,
        )


PLUGIN = '''
from pilotage.adapters.stores.folder import FolderStore

SCHEME = "shelf://upstairs"

class ShelfStore(FolderStore):
    """Files of a shelf, which are files of this computer under other locators."""

    def _there(self, locator):
        return locator.replace(SCHEME, "file://", 1)

    def _named(self, found):
        import msgspec
        return msgspec.structs.replace(found, locator=found.locator.replace("file://", SCHEME, 1))

    def stat(self, locator):
        found = super().stat(self._there(locator))
        return found and self._named(found)

    def is_folder(self, locator):
        return super().is_folder(self._there(locator))

    def read(self, locator, **how):
        return super().read(self._there(locator), **how)

    def list(self, prefix):
        return map(self._named, super().list(self._there(prefix)))

    def put(self, source, locator, **how):
        return self._named(super().put(source, self._there(locator), **how))

    def delete(self, locator):
        return super().delete(self._there(locator))

def shelf_store(settings):
    return ShelfStore()
'''


@contextmanager
def installed_shelf(folder: Path, patch: Any) -> Iterator[None]:
    """A distribution with a store of its own, as an installer leaves it."""
    about = folder / "pilotage_shelf-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "pilotage_shelf.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pilotage-shelf\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pilotage.stores]\nshelf = pilotage_shelf:shelf_store\n")
    patch.syspath_prepend(str(folder))
    adapter_registry._installed.cache_clear()
    try:
        yield
    finally:
        adapter_registry._installed.cache_clear()
        sys.modules.pop("pilotage_shelf", None)
