"""`pilotage site test`: one real pilot through every hop, and the name of the one that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilotage.cli.output import emit
from pilotage.cli.remote import json_option
from pilotage.cli.site_files import sites_option
from pilotage.cli.words import one_line, text_width
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.site_hops import Hop

WORDS_LINES_MAX = 20


@click.command("test")
@click.argument("name", metavar="NAME")
@click.option(
    "--timeout", "seconds_max", type=click.FloatRange(min=1), default=900.0, metavar="SECONDS", show_default=True,
    help="How long to wait in all: for the queue, above all.",
)  # fmt: skip
@sites_option
@json_option
def test(name: str, seconds_max: float, sites: str | None, *, as_json: bool) -> int:
    """Run one real pilot through every hop of a site, and name the one that fails.

    From the login node to an output that comes back: each hop has a line with its time. Where one fails, what the
    pilot itself wrote is shown. Where pilots live already, one more is started. A service is started where none runs here.
    """
    from pilotage.app.site_hops import HOPS
    from pilotage.app.site_making import test_site

    width = max(map(text_width, HOPS.values()))

    def tell(hop: Hop) -> None:
        if as_json:
            return
        mark = "ok  " if hop.ok else "FAIL"
        told = f"  {one_line(hop.message)}" if hop.message else ""
        emit([f"{mark}  {HOPS[hop.hop]:{width}}  {hop.seconds:7.2f} s{told}\n"])
        if not hop.ok:
            emit(f"      | {one_line(line)}\n" for line in hop.stderr.splitlines()[-WORDS_LINES_MAX:])
            if hop.hint:
                emit([f"      → {one_line(hop.hint)}\n"])

    passed, hops = test_site(name, named=sites or "", seconds_max=seconds_max, tell=tell)
    if as_json:
        import msgspec

        from pilotage import app

        failed = next((each.hop for each in hops if not each.ok), None)
        told = {"site": name, "ok": passed, "failed": failed, "hops": [msgspec.to_builtins(each) for each in hops]}
        emit([app.json_text(told)])
    return ExitCode.COMPLETE if passed else ExitCode.FAILED
