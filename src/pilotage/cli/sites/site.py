"""`pilotage site`: lists, explains, hibernates, wakes and probes sites."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import duration, emit, one_line, print_message, table
from pilotage.cli.shared.server import connect, connect_to_read, json_option, server_option
from pilotage.cli.sites.setup import add, agent, pack, remove, sites_option, test, token
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.client.server import Parameters

NOT_SERVED, SILENT = "not served", "silent"
GONE = ("gone", "removed")
_DONE = {"hibernate": "hibernates", "wake": "is woken", "probe": "is being probed"}
_COLUMNS = ("SITE", "KIND", "STATUS", "SCORE", "TSCORE", "PILOTS", "SLOTS", "USED", "QUEUE", "MESSAGE")


@click.group(cls=WholeHelp)
def site() -> None:
    """Manage sites: add, test, list, hibernate, wake.

    Sites are declared in sites.yaml, in the folder of the project or in your settings. A service reads the file when it
    starts, and again when it changes.
    """


@site.command("list")
@click.option("--all", "everything", is_flag=True, help="Also list removed sites that the book still has.")
@sites_option
@json_option
@server_option
def list_sites(
    sites: str | None, server: str | None, token_file: str | None, *, everything: bool, as_json: bool
) -> None:
    """Show all sites and their status.

    PILOTS counts queued/running pilots, SLOTS and USED their slots; QUEUE is the median of their last waiting times. For a
    site where pilots cannot start, the last output of one is shown, and whether more are submitted.
    """
    found = _all_sites(server, token_file, sites)
    if not everything:
        found["sites"] = [each for each in found["sites"] if each["status"] not in GONE]
    if as_json:
        _emit_json(found)
        return
    if not found["sites"]:
        emit(["there are no sites; add one with: pilotage site add NAME ssh://USER@HOST\n"])
    emit(table(map(_row, found["sites"]), header=_COLUMNS))
    for each in found["sites"]:
        emit(_trouble_lines(each))
    if found["fault"]:
        print_message(f"warning: {found['file']} was not loaded, the sites stay as they were: {found['fault']}")


@site.command("show")
@click.argument("name", metavar="NAME")
@json_option
@server_option
def show(name: str, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Show one site: its status, its entry in sites.yaml, and its latest pilots."""
    found, _ = _shown(server, token_file, name)
    if as_json:
        _emit_json(found)
        return
    about = found["site"]
    emit([f"{one_line(name)}: {about['status']}\n"])
    emit(table(_facts(about), indent="  "))
    emit(_trouble_lines(about))
    if found["entry"]:
        emit(["  sites.yaml\n"])
        emit(
            table(((key, _value_text(value)) for key, value in found["entry"].items() if key != "name"), indent="    ")
        )
    if found["pilots"]:
        emit(["  pilots\n"])
        came = {row["request"]: row for row in found["pilots"] if row["request"]}
        shown = [row for row in found["pilots"] if row["pilot"] not in came]
        asked = {row["pilot"]: row for row in found["pilots"]}
        noticed = {each["key"]: each for each in found["noticed"]}
        emit(table((_pilot(row, asked.get(row["request"]), noticed.get(row["pilot"])) for row in shown), indent="    "))


@site.command("explain")
@click.argument("name", metavar="NAME")
@json_option
@server_option
def explain(name: str, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Explain why a site gets work or not: the result of each stage of site selection."""
    found, resting = _shown(server, token_file, name)
    if as_json:
        about = {key: found["site"][key] for key in ("status", "says", "closed", "unheard", "last_words")}
        _emit_json({"site": name, **about, "reasons": found["reasons"]})
        return
    emit([f"{one_line(name)}: {found['site']['status']}\n"])
    if found["site"]["says"]:
        emit([f"  says    {one_line(found['site']['says'])}\n"])
    if resting:
        emit(["  no service runs here, so no site gets work\n    next: pilotage serve\n"])
    for why in found["reasons"]:
        mark = "" if why.get("passes", True) else "  ← excluded here"
        until = f" (until {moment(why['until'])})" if why.get("until") else ""
        emit([f"  {why['stage']:<7} {one_line(why['message'])}{until}{mark}\n"])
    emit(_trouble_lines(found["site"]))


@site.command("hibernate")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--message", default="", metavar="TEXT", help="Record TEXT in the book as the reason.")
@json_option
@server_option
def hibernate(
    names: tuple[str, ...], message: str, server: str | None, token_file: str | None, *, as_json: bool
) -> int:
    """Send no more work to sites until they are woken.

    Running attempts continue.
    """
    with connect(server, token_file) as connection:
        return _operate(connection, "hibernate", names, message=message, as_json=as_json)


@site.command("wake")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--message", default="", metavar="TEXT", help="Record TEXT in the book as the reason.")
@json_option
@server_option
def wake(names: tuple[str, ...], message: str, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Give a new chance to sites that hibernate, have a bad score, or could not start pilots."""
    with connect(server, token_file) as connection:
        return _operate(connection, "wake", names, message=message, as_json=as_json)


@site.command("probe")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everywhere", is_flag=True, help="Probe all sites of the service.")
@click.option("--no-wait", is_flag=True, help="Return when the probes have started; the book records their results.")
@click.option(
    "--timeout", "seconds_max", type=click.FloatRange(min=1), metavar="SECONDS",
    help="Wait at most this long; without it, as long as engine.probe_timeout_seconds in the settings here.",
)  # fmt: skip
@json_option
@server_option
def probe(
    names: tuple[str, ...],
    seconds_max: float | None,
    server: str | None,
    token_file: str | None,
    *,
    everywhere: bool,
    no_wait: bool,
    as_json: bool,
) -> int:
    """Test whether a pilot starts at a site: the probe starts one there, which exits at once.

    The result is recorded as the event SiteProbed. A failed probe hibernates the site; a successful one wakes it, unless it
    was hibernated by hand.
    """
    if bool(names) == everywhere:
        raise click.UsageError("Which sites? Name them, or use --all.")
    patience = probe_wait_seconds() if seconds_max is None else seconds_max
    with connect(server, token_file) as connection:
        if everywhere:
            names = tuple(
                each["site"] for each in _sites(connection)["sites"] if each["status"] not in (*GONE, "leaving")
            )
        before = position(connection)
        if no_wait:
            return _operate(connection, "probe", names, as_json=as_json)
        done, refused = _send_each(connection, "probe", names, message="", quiet=as_json)
        begun = [each["site"] for each in done]
        _print_unreachable(connection, begun, quiet=as_json)
        results = await_probes(connection, begun, after=before, seconds_max=patience)
        passed = [each["site"] for each in results if each["ok"]]
        asleep = [name for name in passed if _one(connection, name)["site"]["status"] == "hibernated"]
    if as_json:
        _emit_json({"operation": "probe", "probes": results, "refused": refused})
    else:
        for each in results:
            word = "started" if each["ok"] else "did not start"
            message = f": {one_line(each['message'])}" if each["message"] else ""
            emit([f"{each['site']}: a pilot {word} after {duration(round(each['seconds'], 1))}{message}\n"])
            if each["site"] in asleep:
                name = one_line(each["site"])
                emit(
                    [
                        f"{name} still hibernates, since it was hibernated by hand; wake it with: pilotage site wake {name}\n"
                    ]
                )
    if refused:
        return ExitCode.BAD_INPUT
    return ExitCode.COMPLETE if all(each["ok"] for each in results) else ExitCode.FAILED


def _print_unreachable(connection: Server, names: Sequence[str], *, quiet: bool) -> None:
    """Print which sites do not answer, since their probes wait until they do."""
    for name in () if quiet else names:
        about = _one(connection, name)["site"]
        if about["status"] == SILENT:
            why = f": {one_line(about['says'])}" if about["says"] else ""
            emit([f"{one_line(name)} does not answer{why}\n  its pilot will be submitted when it does\n"])


for _command in (add, remove, test, agent, pack, token):
    site.add_command(_command)


def _all_sites(server: str | None, token_file: str | None, file: str | None) -> dict[str, Any]:
    """All sites from the server; without a server, from sites.yaml."""
    from pilotage.app.sites.entries import written_sites
    from pilotage.client.errors import NoServer

    try:
        with connect_to_read(server, token_file) as connection:
            found, resting = _sites(connection), connection.resting
    except NoServer:
        found, resting = {"sites": [], "file": "", "fault": ""}, True
    if resting:
        written = written_sites(file)
        names = {each["site"] for each in written["sites"]}
        before = [each | {"status": NOT_SERVED} for each in found["sites"] if each["site"] in names | {"local"}]
        known = {each["site"] for each in before}
        found = written | {"sites": [*before, *(each for each in written["sites"] if each["site"] not in known)]}
    return found


def _sites(connection: Server) -> dict[str, Any]:
    from pilotage.client.server import path_of

    found: dict[str, Any] = connection.get(path_of("sites"))
    return found


def _shown(server: str | None, token_file: str | None, name: str) -> tuple[dict[str, Any], bool]:
    """A site from the server, or from sites.yaml if no service ever ran; and whether no service runs now."""
    from pilotage.app.sites.entries import written_site
    from pilotage.client import ServerRefused
    from pilotage.client.errors import NoServer

    try:
        with connect_to_read(server, token_file) as connection:
            try:
                return _one(connection, name), connection.resting
            except ServerRefused as error:
                if not connection.resting or error.code != "unknown_site":
                    raise
                return written_site(name), True
    except NoServer:
        return written_site(name), True


def _one(connection: Server, name: str) -> dict[str, Any]:
    from pilotage.client.server import path_of

    found: dict[str, Any] = connection.get(path_of("sites", name))
    return found


def _row(about: dict[str, Any]) -> Sequence[object]:
    pilots = f"{about['pilots_queued']}/{about['pilots_live']}"
    queue = about["queue_seconds"]
    return (
        about["site"], about["kind"], about["status"], _number(about["score"]), _number(about["tscore"]), pilots,
        about["slots"], about["used"], "" if queue is None else duration(round(queue, 1)), about["message"],
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _facts(about: dict[str, Any]) -> Iterator[tuple[str, object]]:
    names = ("kind", "mode", "score", "tscore", "slots", "used", "message")
    for name in names:
        value = about[name]
        if value not in (None, ""):
            yield name, _number(value) if isinstance(value, float) else value
    yield "pilots", f"{about['pilots_queued']} queued, {about['pilots_live']} live"
    if about["queue_seconds"] is not None:
        yield "queue", duration(round(about["queue_seconds"], 1))


def _trouble_lines(about: dict[str, Any]) -> Iterator[str]:
    """Why no pilots are submitted at a site, which pilots are silent, and the output of the last one that failed to start."""
    died = "pilots ended there before they contacted the service" if about["dead_starts"] else ""
    reasons = [each for each in (about["closed"], about["unheard"]) if each] or ([died] if died else [])
    if not reasons:
        return
    name = one_line(about["site"])
    yield from (f"{name}: {one_line(each)}\n" for each in reasons)
    for line in about["last_words"].splitlines():
        yield f"  | {one_line(line)}\n"
    if about["next_try_at"] is not None:
        yield f"  the next pilot is tried at {moment(about['next_try_at'])}, if packages still wait for it\n"
    if about["unheard"] or about["status"] == SILENT:
        yield f"  find the failing hop: pilotage site test {name}\n"
    elif about["dead_starts"]:
        yield f"  find the failing hop: pilotage site test {name}; then: pilotage site wake {name}\n"


def _pilot(row: dict[str, Any], request: dict[str, Any] | None, noticed: dict[str, Any] | None) -> Sequence[object]:
    ended = f"ended: {row['reason']}" if row["ended_at"] is not None else "lives" if row["started_at"] else "queued"
    if noticed is not None:
        ended = "held" if noticed["state"] == "held" else "runs, unheard"
    words = noticed.get("words", "") if noticed is not None else row["stderr"] or ""
    (last,) = words.strip().splitlines()[-1:] or [""]
    begun = moment(row["requested_at"] or (request or row)["requested_at"] or row["started_at"])
    return row["pilot"], row["native_id"] or (request or row)["native_id"], row["node"], begun, ended, last


def _value_text(value: object) -> str:
    from pilotage import app

    if isinstance(value, list):
        return ", ".join(map(_value_text, value))
    return value if isinstance(value, str) else " ".join(app.json_text(value).split())


def _operate(connection: Server, deed: str, names: Sequence[str], *, as_json: bool, message: str = "") -> int:
    done, refused = _send_each(connection, deed, names, message=message, quiet=as_json)
    if as_json:
        _emit_json({"operation": deed, "done": done, "refused": refused})
    return ExitCode.BAD_INPUT if refused else ExitCode.COMPLETE


def _send_each(
    connection: Server, deed: str, names: Sequence[str], *, message: str, quiet: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Send an operation to each site; one that is rejected is named, and the others are still sent."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    done: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for name in names:
        try:
            answer = connection.post(path_of("sites", name, deed), {"message": message})
        except ServerRefused as error:
            if len(names) == 1 and not quiet:
                raise
            refused.append({"site": name, "code": error.code, "message": error.what})
            if not quiet:
                print_message(f"error: {error}")
            continue
        done.append({"site": name, "operation": answer["operation"], "events": answer["events"]})
        if not quiet:
            emit([f"{one_line(name)} {_DONE[deed]}\n"])
    return done, refused


def _emit_json(report: object) -> None:
    from pilotage import app

    emit([app.json_text(report)])


# The results of probes, read from the book.

LOOK_SECONDS = 1.0
LATE_SECONDS = 30.0
"""Within this time after its timeout, the failure of a probe is in the book."""


def probe_wait_seconds() -> float:
    """The default wait for a probe: until the service gives it up, by the settings of this folder."""
    from pilotage.app.state_folder import settings_here

    return settings_here().engine.probe_timeout_seconds + LATE_SECONDS


def position(connection: Server) -> int:
    """The last position of the book."""
    from pilotage.client.server import path_of

    found: int = connection.get(path_of("position"))["position"]
    return found


def await_probes(connection: Server, sites: Sequence[str], *, after: int, seconds_max: float) -> list[dict[str, Any]]:
    """The results of probes that started after a position; a probe that does not end in time counts as failed."""
    begun = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(sites) and time.monotonic() < begun + seconds_max:
        for name in sites:
            if name not in found and (result := _probed(connection, name, after)) is not None:
                found[name] = {"site": name, **result}
        if len(found) < len(sites):
            time.sleep(LOOK_SECONDS)
    late = {"ok": False, "seconds": seconds_max, "message": "there is no result yet"}
    return [found.get(name, {"site": name, **late}) for name in sites]


def _probed(connection: Server, site: str, after: int) -> dict[str, Any] | None:
    from pilotage.client.server import path_of

    asked: Parameters = {"query": f"type=SiteProbed and site={site} and position>{after}", "limit": 1}
    for event in connection.get(path_of("events"), asked)["events"]:
        data = event["data"]
        return {"ok": data["passed"], "seconds": data.get("seconds", 0.0), "message": data.get("message", "")}
    return None
