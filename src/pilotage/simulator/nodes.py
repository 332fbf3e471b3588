"""Nodes that have names: worlds whose sites say what theirs are called, and whose packages may run on some of them only."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pilotage.model.demand import lacking
from pilotage.model.plan import Template
from pilotage.model.site import Site
from pilotage.simulator.jobs import JobSketch

if TYPE_CHECKING:
    from pilotage.simulator.world import SiteSketch

Sites = tuple["SiteSketch", ...]
Jobs = tuple[JobSketch, ...]

_WORLDS = 0.2  # of these sites name their nodes
_TEMPLATES = 0.3  # of these may run on some nodes only


def with_nodes(dice: random.Random, sites: Sites, jobs: Jobs) -> tuple[Sites, Jobs]:
    """The same with names of nodes, or as they are; chance of its own decides, so that other worlds are what they were."""
    if dice.random() >= _WORLDS:
        return sites, jobs
    sites = tuple(_named(dice, each) for each in sites)
    return sites, tuple(
        replace(job, templates=tuple(_restricted(dice, each, sites) for each in job.templates)) for job in jobs
    )


def _named(dice: random.Random, sketch: SiteSketch) -> SiteSketch:
    name = sketch.site.name
    nodes = tuple(f"{name}-n{number}" for number in range(1, dice.randint(2, 4) + 1))
    said = dice.choice([nodes, (f"{name}-n*",)])
    # Where nobody can say on which node a batch job is to run, only a pilot that comes up there by chance will do.
    places = sketch.site.mode == "bound" or dice.random() < 0.7
    return replace(sketch, nodes=nodes, site=replace(sketch.site, node_names=said, places_nodes=places))


def _restricted(dice: random.Random, template: Template, sites: Sites) -> Template:
    homes = [each for each in sites if _could_run(each.site, template)]
    if not homes or template.demand.nodes > 1 or dice.random() >= _TEMPLATES:
        return template
    home = dice.choice(homes)
    named = tuple(dice.sample(home.nodes, dice.choice([1, 1, 2])))
    if dice.random() < 0.2:
        named = (f"{home.site.name}-n[12]",)
    return replace(template, demand=replace(template.demand, node_restriction=named))


def _could_run(site: Site, template: Template) -> bool:
    """Whether a site has all that a package asks for, whatever its nodes are called."""
    demand, longest = template.demand, site.package_seconds_max
    if template.executor not in ("", site.name, site.kind) or lacking(demand, site.capacity):
        return False
    return not longest or max(demand.wall_seconds, template.run_seconds) <= longest
