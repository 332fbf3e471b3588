"""A job as the engine sees it: packages as numbers, their dependencies, and the resources of each kind.

A plan follows from the definition and its lists, so it is never stored: to start an engine, the job is expanded again.
Late stages make it grow: a grown plan has the earlier packages with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.model.jobs.definition import AbortOn, Retry
from pilotage.model.jobs.estimates import EarlierRunTime
from pilotage.model.jobs.file_plan import FilePlan
from pilotage.model.jobs.graph import Graph
from pilotage.model.jobs.layout import PackageId, StageLayout
from pilotage.model.resources import Demand
from pilotage.model.site import Start


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of package of a job: what all packages of a template share."""

    activity: str
    demand: Demand = Demand()
    priority: int = 0  # within the job; higher goes first
    run_seconds: float = 0.0  # estimated; 0: unknown
    executor: str = ""  # the one site, or kind of site, it may run on
    category: str = ""
    side_effects: bool = False  # never run twice at once
    retry: Retry = Retry()
    replicas_max: int | None = None  # live attempts of one package; none: the setting
    final: bool = False  # a final package: runs last in any case
    abort_on: AbortOn | None = None  # an exit status that ends the job
    platform: str = ""
    job_type: str = "normal"
    data_handling: bool = False  # needs a data-handling service at its site
    software: tuple[str, ...] = ()  # `ID` or `ID/VERSION`
    starts: tuple[tuple[Start, ...], ...] = ()  # of each binary whose start depends on the site
    work_bytes: int = 0  # of its work files, estimated
    input_bytes: int = 0  # of its inputs, as far as the document says
    output_bytes: int = 0  # of its outputs, likewise
    locators: tuple[str, ...] = ()  # of its inputs and outputs; `…*`: only the prefix is known
    stores_outputs: bool = False  # some of its outputs are copied to stores before they are granted
    disposes_outputs: bool = False  # some of its outputs are removed after their last consumer
    retains_outputs: bool = False  # some of its outputs may be kept in the cache of the site where they were made


class LatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A late stage: the packages and other late stages that must be complete before it can be expanded."""

    stage: int
    packages: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the engine must know of a job beyond its events."""

    graph: Graph
    templates: tuple[Template, ...]
    template_of: NDArray[np.uint32]  # by package
    layouts: Mapping[int, StageLayout]  # by stage, which counts from 1
    late: tuple[LatePlan, ...] = ()
    laid_out: tuple[LatePlan, ...] = ()  # former late stages, now expanded
    late_waits: Mapping[int, tuple[int, ...]] = {}  # template → the late stages that its packages wait for
    limits: Mapping[str, int] = {}  # category → how many of its packages may run at once
    priority: int = 0
    hold: bool = False
    failures_max: int = 0  # permanent failures that end the job; 0: none does
    earlier_run_times: tuple[
        EarlierRunTime, ...
    ] = ()  # from earlier runs, where the document gives none; for forecasts only
    files: FilePlan | None = None  # that are brought to sites; none: no package needs one
    releases: Callable[[int], Sequence[str]] | None = None
    """By package, the locators of the outputs of earlier jobs that it reads in their tree, and releases when it is done."""

    @property
    def count(self) -> int:
        """How many packages are known."""
        return self.graph.count

    def number(self, stage: int, line: int, number: int) -> int | None:
        """The number of the package at an address, or None."""
        layout = self.layouts.get(stage)
        return layout.number_at(line=line, number=number) if layout is not None else None

    def place(self, package: int) -> PackageId:
        """The address of a package."""
        for layout in self.layouts.values():
            if layout.first <= package < layout.first + layout.count:
                return layout.id(package)
        raise IndexError(package)
