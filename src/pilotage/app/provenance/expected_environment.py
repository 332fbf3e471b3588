"""What will differ when a recorded job runs again, as far as it is known before: of this computer, or of the nodes of a site."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.records import JobRecord, RecordNode
from pilotage.model.version import VERSION
from pilotage.provenance.differences import Difference, expected_differences

if TYPE_CHECKING:
    from pilotage.client import Server

LOCAL = "local"
"""The site that is this computer."""
VARIABLES_VARIABLE = "PILOTAGE_PROVENANCE_VARIABLES"


class ExpectedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The sites where a new run is expected, how many of their nodes are known, and what none of these has as it was recorded."""

    sites: tuple[str, ...]
    nodes: int
    software: tuple[Difference, ...]
    environment: tuple[Difference, ...]


def expected_environment(
    record: JobRecord,
    *,
    executor: str,
    known_sites: Collection[str],
    site_nodes: Callable[[Collection[str]], Iterable[RecordNode]],
) -> ExpectedEnvironment:
    """Compare the nodes of a record with those of the executor; without one, of the sites where the job ran, or of this computer."""
    sites = {executor} if executor else set(record.sites) & {LOCAL, *known_sites} or {LOCAL}
    recorded_variables = {name for node in record.nodes for name in node.environment}
    nodes, unset = [], set[str]()
    if LOCAL in sites:
        nodes.append(this_node(recorded_variables))
        unset = recorded_variables - nodes[0].environment.keys()
    if others := sites - {LOCAL}:
        nodes += site_nodes(others)
    software, environment = expected_differences(record, nodes, unset=unset, made_by=VERSION)
    return ExpectedEnvironment(sites=tuple(sorted(sites)), nodes=len(nodes), software=software, environment=environment)


def this_node(variables: Iterable[str]) -> RecordNode:
    """Describe this computer as an agent on it would, with some environment variables."""
    from pilotage.agent.pilot.pilot import describe_node

    node = msgspec.convert(describe_node(os.uname().nodename, LOCAL), RecordNode)
    found = {name: os.environ[name] for name in variables if name in os.environ}
    return msgspec.structs.replace(node, environment={**node.environment, **found})


def nodes_at(server: Server, sites: Collection[str]) -> list[RecordNode]:
    """The nodes of some sites that the book of a server knows."""
    found: list[RecordNode] = []
    after: str | None = None
    while True:
        page = server.get("/v1/nodes", {"after": after})
        found += [msgspec.convert(each, RecordNode) for each in page["nodes"] if each["site"] in sites]
        after = page["next"]
        if after is None:
            return found


def pass_on_variables(variables: Iterable[str]) -> None:
    """Have a service that this process starts elsewhere, such as in the folder of a new run, ask nodes for these variables."""
    os.environ.setdefault(VARIABLES_VARIABLE, ",".join(variables))


def known_site_names(sites_file: str) -> set[str]:
    """The sites that a run from the current folder could use."""
    from pilotage.app.sites.entries import executors_for, known_sites

    named = {each.name for each in known_sites(Path(sites_file)).entries} if sites_file else executors_for(Path.cwd())
    return {LOCAL, *named}
