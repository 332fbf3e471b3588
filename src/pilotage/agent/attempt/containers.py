"""Runs a command in a container, with whichever engine the site has; fails with the reason if it has none.

The container has the package's folder under its own path, the document's folder read-only, and what it needs to log
events: its spool and its token. The command runs as the agent's user, with its words unchanged.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.diagnosis import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pilotage.agent.attempt.files import KnownFiles

ENGINES = ("apptainer", "singularity", "podman", "docker")
_REMOVE_SECONDS = 60.0
_INSPECT_SECONDS = 30.0
DIGEST_SECONDS = 600.0
"""For so long the digest of an image in an engine's store is taken for the same."""
_IMAGE_FILES = (".sif", ".simg")
_ENGINE_FAILED = 125  # exit status of podman and docker
_APPTAINER_FAILED = 255
_NO_IMAGE = re.compile(
    "manifest unknown|name unknown|name invalid|not found|does not exist|invalid reference format|"
    "access denied|access to the resource is denied|unauthorized|did not resolve to an alias|no such image",
    re.IGNORECASE,
)


class ContainerCommand(NamedTuple):
    """A command in a container: its words, and the command that removes the container; empty if it removes itself."""

    argv: list[str]
    removal: tuple[str, ...]


class Engines:
    """The container engines of a node, found at the first use."""

    def __init__(self, path: str, *, is_root: bool | None = None) -> None:
        """Search a PATH."""
        self._path = path
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self._found: dict[str, str | None] = {}
        self._digests: dict[tuple[str, str], tuple[float, str]] = {}  # by engine and image: until when, and the digest

    def find(self, wanted: str) -> tuple[str, str]:
        """The name and path of the wanted engine, or of any. Raises `Failure`."""
        names = ENGINES if wanted in ("", "any") else (wanted,)
        for name in names:
            if name not in self._found:
                self._found[name] = shutil.which(name, path=self._path)
            found = self._found[name]
            if found is not None:
                return name, found
        raise Failure(
            "command-not-found",
            f"the package needs a container, and this node has no engine: looked for {', '.join(names)} in {self._path}",
        )

    def digest(self, container: Mapping[str, Any], *, folder: str, known: KnownFiles) -> str:
        """The digest of the image that a command runs in: of its file, or as its engine knows it; empty if unknown."""
        image = container["image"]
        _, at, digest = image.partition("@sha256:")
        if at:
            return f"sha256:{digest}"
        name, program = self.find(container.get("engine", "any"))
        if name in ("apptainer", "singularity"):
            path = os.path.join(folder, image)
            try:
                return f"sha256:{known.sha256(path, os.stat(path))}" if _is_file(image, folder) else ""
            except OSError:
                return ""  # a folder, or it is gone: then the command fails
        found = self._digests.get((name, image))
        if found is None or found[0] < time.monotonic():
            found = time.monotonic() + DIGEST_SECONDS, _image_digest(program, image)
            if found[1]:
                self._digests[name, image] = found
        return found[1]

    def wrap(
        self,
        container: Mapping[str, Any],
        argv: Collection[str],
        *,
        scratch: str,
        folder: str,
        is_visible: bool = True,
        key: str,
        variables: Collection[str],
        writable: Collection[str] = (),
        readable: Collection[str] = (),
        gpus: int,
    ) -> ContainerCommand:
        """The words that run a command in an image; `variables` are passed into it. Raises `Failure`.

        It has the scratch folder, the `folder` of the document, and the `writable` and `readable` paths. A `folder`
        that is not visible here is not mounted, whatever lies at its path.
        """
        name, program = self.find(container.get("engine", "any"))
        image = container["image"]
        if not is_visible:
            if _is_file(image, "") and not os.path.isabs(image):
                raise Failure("platform-failure", f"the image {image!r} is in {folder}, which is not visible here")
            folder = ""
        shown = [f"{path}:{path}" for path in (scratch, *writable)]
        shown += [f"{path}:{path}:ro" for path in ([folder] if os.path.isdir(folder) else [])]
        shown += [f"{path}:{path}:ro" for path in readable]
        if name in ("apptainer", "singularity"):
            if image.endswith(_IMAGE_FILES) and "://" not in image and not os.path.exists(os.path.join(folder, image)):
                raise Failure("command-not-found", f"the image {image!r} does not exist in {folder or scratch}")
            words = _apptainer(program, image, shown, scratch=scratch, folder=folder, gpus=gpus)
            return ContainerCommand([*words, *argv], ())
        if _is_file(image, folder):
            raise Failure(
                "command-not-found",
                f"the image {image!r} is a file, which {name} cannot run: it needs apptainer, which is not installed here",
            )
        words = [
            program, "run", "--rm", "--name", key, "--network", "host", "--entrypoint", "", "--workdir", scratch,
        ]  # fmt: skip
        for place in shown:
            words += ["--volume", place]
        if name == "podman" and not self._is_root:
            words += ["--userns", "keep-id"]
        words += ["--user", f"{os.geteuid()}:{os.getegid()}"]
        for variable in sorted(variables):
            words += ["--env", variable]  # the engine takes the value from its own environment
        if gpus:
            words += ["--gpus", str(gpus)] if name == "docker" else ["--device", "nvidia.com/gpu=all"]
        return ContainerCommand([*words, image, *argv], (program, "rm", "--force", key))


def _image_digest(program: str, image: str) -> str:
    """The digest of an image in the store of podman or docker: of its registry, else its own id; empty if unknown."""
    form = "{{range .RepoDigests}}{{println .}}{{end}}{{.Id}}"
    try:
        told = subprocess.run(
            [program, "image", "inspect", "--format", form, image], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_INSPECT_SECONDS, check=True, start_new_session=True,
        ).stdout.decode("utf-8", "replace").split()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    digests = [line.partition("@")[2] for line in told if "@sha256:" in line]
    own = told[-1] if told else ""
    return digests[0] if digests else own if ":" in own else f"sha256:{own}" if own else ""


def _apptainer(program: str, image: str, shown: Collection[str], *, scratch: str, folder: str, gpus: int) -> list[str]:
    words = [program, "exec", "--pwd", scratch]
    for place in shown:
        words += ["--bind", place]
    if gpus:
        words.append("--nv")
    if _is_file(image, folder):
        image = os.path.join(folder, image)
    elif "://" not in image:
        image = f"docker://{image}"
    return [*words, image]


def engine_failure(program: str, image: str, *, exit_status: int | None, last_lines: str) -> Failure | None:
    """The failure of an engine that could not start the command, with its last message; None if the command failed.

    A missing image fails at every node; any other failure may be the node's.
    """
    name = os.path.basename(program)
    if name in ("podman", "docker"):
        failed = exit_status == _ENGINE_FAILED
    else:
        failed = exit_status == _APPTAINER_FAILED and "FATAL:" in last_lines
    if not failed:
        return None
    lines = [line.strip() for line in last_lines.splitlines() if line.strip()]
    telling = [line for line in lines if _NO_IMAGE.search(line)]
    detail = (telling or lines or ["it printed nothing"])[-1]
    if telling:
        message = f"cannot get the image {image!r}: {detail}"
        return Failure("command-not-found", message, exit_status=exit_status)
    message = f"{program!r} could not run the container of the image {image!r}: {detail}"
    return Failure("platform-failure", message, exit_status=exit_status)


def _is_file(image: str, folder: str) -> bool:
    if "://" in image or image.endswith(_IMAGE_FILES):
        return "://" not in image
    return bool(folder or os.path.isabs(image)) and os.path.exists(os.path.join(folder, image))


def remove_container(removal: Collection[str], run: Callable[..., Any] = subprocess.run) -> None:
    """Remove a container, if the engine left one."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run(
            list(removal), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_REMOVE_SECONDS, check=False, start_new_session=True,
        )  # fmt: skip
