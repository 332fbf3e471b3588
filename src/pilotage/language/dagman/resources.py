"""What a job takes of a machine: cores, memory, disk, GPUs, machines, time, and the image it runs in."""

from __future__ import annotations

import re

from pilotage.language.dagman.fields import size_bytes
from pilotage.language.dagman.submit import SubmitJob
from pilotage.language.dagman.vocabulary import OTHER_LOSSES
from pilotage.language.losses import Losses
from pilotage.language.text.templates import escape_braces
from pilotage.model.definition import Container, Resources

_KNOWN_UNIVERSES = frozenset({"", "vanilla", "container", "docker", "parallel", "5"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")


def whole_number(job: SubmitJob, losses: Losses, *names: str) -> int | None:
    """The integer of a command; what is none is listed as a loss."""
    text = job.text(*names)
    if not text:
        return None
    if not _WHOLE.fullmatch(text):
        _lose(job, losses, *names)
        return None
    return int(text)


def _lose(job: SubmitJob, losses: Losses, *names: str) -> None:
    origin = job.origin(*names)
    losses.add(names[0], f"{job.text(*names)}: {OTHER_LOSSES[names[0]]}", file=origin.file, mark=origin.mark)


def _size(job: SubmitJob, losses: Losses, *names: str, unit: int) -> int | None:
    text = job.text(*names)
    found = size_bytes(text, unit=unit) if text else None
    if text and found is None:
        _lose(job, losses, *names)
    return found


def resources(job: SubmitJob, losses: Losses) -> Resources:
    """The resources that a description asks for."""
    universe = job.text("universe").lower()
    if universe not in _KNOWN_UNIVERSES:
        origin = job.origin("universe")
        losses.add("universe", f"{universe}: {OTHER_LOSSES['universe']}", file=origin.file, mark=origin.mark)
    cores = whole_number(job, losses, "request_cpus", "requestcpus")
    gpus = whole_number(job, losses, "request_gpus", "requestgpus")
    nodes = whole_number(job, losses, "machine_count", "machinecount", "node_count", "nodecount")
    durations = [whole_number(job, losses, name) for name in ("allowed_job_duration", "allowed_execute_duration")]
    limits = [seconds for seconds in durations if seconds is not None and seconds > 0]
    return Resources(
        cores=cores if cores is not None and cores > 0 else 1,
        memory_bytes=_size(job, losses, "request_memory", "requestmemory", unit=1024**2),
        gpus=gpus if gpus is not None and gpus > 0 else 0,
        nodes=nodes if nodes is not None and nodes > 0 else 1,
        wall_time_seconds=min(limits) if limits else None,
        scratch_bytes=_size(job, losses, "request_disk", "requestdisk", unit=1024),
    )


def container(job: SubmitJob) -> Container | None:
    """The image a job runs in."""
    docker = job.text("docker_image")
    image = docker or job.text("container_image")
    if not image:
        return None
    return Container(image=escape_braces(image), engine="docker" if docker else "any")
