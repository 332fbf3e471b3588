"""Files that the index has as ours, remembered for a while: what is kept is seen soon after, and need not be kept again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pilotage.ports.files import MadeWork, SeenFile

_FILES_MAX = 16_384


class KeptFiles:
    """The last content that was kept under each name; one thread asks at a time."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._contents: dict[str, dict[str, str]] = {}  # folder → name → sha256
        self._count = 0

    def add(self, made: Iterable[MadeWork]) -> None:
        """These are in the index."""
        if self._count >= _FILES_MAX:
            self._contents, self._count = {}, 0
        for one in made:
            contents = self._contents.setdefault(one.folder, {})
            for file in one.manifest:
                contents[file.name] = file.sha256
            self._count += len(one.manifest)

    def others(self, folder: str, files: Collection[SeenFile]) -> list[SeenFile]:
        """Which of some files are not known to be in the index."""
        known = self._contents.get(folder, {}).get
        return [each for each in files if known(each.file.name) != each.sha256]
