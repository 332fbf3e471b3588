"""Reads and writes `world.yaml`: text → tree → checked world, with all faults of the file at once.

Short forms are resolved on nodes first, as for a job: a time or a factor alone is a fixed distribution, a list of them an
empirical one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from pilotage.language.folder import MemoryFolder
from pilotage.language.parsing.document import nearest_mark
from pilotage.language.parsing.kinds import DocumentParse, FieldPath
from pilotage.language.parsing.records import Record
from pilotage.language.parsing.sites import table_of_sites
from pilotage.language.text.tree import Listing, Node, Report, Scalar, Table
from pilotage.language.text.yaml import read_tree
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import plain
from pilotage.model.sites.world import GIVEN, OFFSET_FORMS, WORLD_VERSION, Factors, SiteWorld, Times, WorldFile


def _spread_end(place: FieldPath) -> int:
    """The length of the part of a path that leads to its distribution."""
    return 3 if place[0] in ("sites", "stores") else 4 if "activities" in place else 2


class _Note(Protocol):
    """Reports a fault at a path."""

    def __call__(self, code: str, message: str, place: FieldPath, hint: str = "") -> None: ...


_OF_SITES = ("submission", "queue", "speed", "straggler_factor", "stall_factor", "outage_every", "outage_lasts")
_OF_PACKAGES = ("run_time", "run_time_factor", "setup", "inputs", "outputs")
_EMPIRICAL_MAX = 100_000


def read_world(data: bytes, *, file: str, sites: Collection[str]) -> tuple[WorldFile | None, Report]:
    """Read a world for some sites; the report has all faults, and the result is None if there are any."""
    tree, report = read_tree(data, file=file)
    if tree is None:
        return None, report
    reading = DocumentParse(report, MemoryFolder({}))
    table = table_of_sites(tree, reading, version=WORLD_VERSION)
    if table is None:
        return None, report
    found = Record(WorldFile).read(_written_out(table), (), reading)
    if not isinstance(found, WorldFile):
        return None, report

    def note(code: str, message: str, place: FieldPath, hint: str = "") -> None:
        # Unreadable parts are reported already; what seems to be missing there is not a second fault.
        if not any(reading.is_faulty(place[:end]) for end in (len(place), _spread_end(place))):
            report.error(code, message, nearest_mark(reading.marks, place), hint=hint)

    names: set[str] = set()
    for position, site in enumerate(found.sites):
        place: FieldPath = ("sites", position)
        if site.name not in sites:
            hint = did_you_mean(site.name, sites)
            note("unknown-site", f"no site is called {site.name!r}", (*place, "name"), hint)
        elif site.name in names:
            note("duplicate-name", f"two sites are called {site.name!r}", (*place, "name"))
        names.add(site.name)
        _check_site(site, place, note)
    _check_packages(found, note)
    urls = [store.url for store in found.stores]
    for position, url in enumerate(urls):
        if url in urls[:position]:
            note("duplicate-name", f"two stores have the URL {url!r}", ("stores", position, "url"))
    return (None if report.errors else found), report


def write_world(world: WorldFile) -> str:
    """The canonical text of a world."""
    from pilotage.language.text.emit import write_yaml

    return write_yaml(plain(world))


# --- what is wrong between fields -------------------------------------------------------------------------------------


def _check_site(site: SiteWorld, place: FieldPath, note: _Note) -> None:
    for field in _OF_SITES:
        spread = getattr(site, field)
        if spread is not None:
            _check_spread(spread, (*place, field), note)
    every = site.outage_every
    if every is not None and every.distribution == "fixed" and every.value_seconds == 0:
        note("out-of-range", "a site without time between outages never runs anything", (*place, "outage_every"))
    times = [each.after_seconds for each in site.drift]
    if times != sorted(set(times)):
        note("bad-order", "each change must come after the one before it", (*place, "drift"))


def _check_packages(world: WorldFile, note: _Note) -> None:
    packages = world.packages
    for field in _OF_PACKAGES:
        _check_spread(getattr(packages, field), ("packages", field), note)
    names: set[str] = set()
    for position, activity in enumerate(packages.activities):
        place: FieldPath = ("packages", "activities", position)
        if activity.name in names:
            note("duplicate-name", f"{activity.name!r} is listed twice", (*place, "name"))
        names.add(activity.name)
        if activity.run_time is not None:
            _check_spread(activity.run_time, (*place, "run_time"), note)


def _check_spread(spread: Times | Factors, place: FieldPath, note: _Note) -> None:
    """Check that a distribution has the fields of its form and no others."""
    wanted = GIVEN[spread.distribution]
    for field in msgspec.structs.fields(type(spread)):
        short = field.name.removesuffix("_seconds")
        if short == "distribution":
            continue
        value = getattr(spread, field.name)
        if short == "offset" and spread.distribution in OFFSET_FORMS:
            continue
        given = bool(value) if short == "values" else value is not None
        if short in wanted and not given:
            note("missing-field", f"the distribution {spread.distribution!r} needs the field {short!r}", place)
        elif given and short not in wanted:
            takes = " and ".join(repr(name) for name in wanted)
            note(
                "misplaced-field",
                f"{spread.distribution!r} has the fields {takes}, not {short!r}",
                (*place, field.name),
            )
    low, high = (spread.low_seconds, spread.high_seconds) if isinstance(spread, Times) else (spread.low, spread.high)
    if low is not None and high is not None and low > high:
        note("out-of-range", f"'low', {low:g}, is more than 'high', {high:g}", place)
    if len(spread.values) > _EMPIRICAL_MAX:
        note("too-large", f"{len(spread.values):,} values; at most {_EMPIRICAL_MAX:,} are allowed", place)


# --- short forms ------------------------------------------------------------------------------------------------------


def _written_out(tree: Table) -> Table:
    """The tree with all distributions written as mappings."""
    return _with(tree, {"sites": _each(lambda node: _spreads(node, _OF_SITES)), "packages": _packages})


def _packages(node: Node) -> Node:
    node = _spreads(node, _OF_PACKAGES)
    if not isinstance(node, Table):
        return node
    return _with(node, {"activities": _each(lambda one: _spreads(one, ("run_time",)))})


def _spreads(node: Node, names: tuple[str, ...]) -> Node:
    return _with(node, dict.fromkeys(names, _spread)) if isinstance(node, Table) else node


def _spread(node: Node) -> Node:
    if isinstance(node, Table):
        return node
    if isinstance(node, Scalar):
        return Table(((Scalar("value", plain=False, mark=node.mark), node),), node.mark)
    form = Scalar("empirical", plain=False, mark=node.mark)
    entries = (("distribution", form), ("values", node))
    return Table(tuple((Scalar(name, plain=False, mark=node.mark), one) for name, one in entries), node.mark)


def _each(change: Callable[[Node], Node]) -> Callable[[Node], Node]:
    def changed(node: Node) -> Node:
        if isinstance(node, Listing):
            return Listing(tuple(map(change, node.items)), node.mark)
        return change(node)

    return changed


def _with(table: Table, changes: dict[str, Callable[[Node], Node]]) -> Table:
    return Table(
        tuple((key, changes[key.text](node) if key.text in changes else node) for key, node in table.entries),
        table.mark,
    )
