"""`pilotage site test` where pilots live already: one more goes through every hop, and its fate does the site no harm."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.process_batch import ProcessBatch, give_dialect
from tests.kit.real_runs import place_in, wait_until

HOPS = [
    "reach", "scheduler", "install", "service", "submit", "starts", "python", "server", "exchange", "package", "outputs",
]  # fmt: skip


def test_a_site_where_a_pilot_lives_is_tested_by_one_of_its_own(tmp_path: Path) -> None:
    batch, work = ProcessBatch(tmp_path / "batch"), tmp_path / "work"
    work.mkdir()
    give_dialect(work)
    entry = f"{{name: lyon, kind: procbatch, folder: {tmp_path / 'shared'}, python: {sys.executable}, pilots_max: 1}}"
    (work / "sites.yaml").write_text(f"pilotage: 1\nsites:\n  - {entry}\n")
    with place_in(work, environment=batch.environment()) as place:
        place.run("serve", "--slots", "0", "--port", "0", "--background")
        place.document("pilotage: 1\njob: first\nstages:\n  - {shell: echo > made, outputs: [made]}\n")
        place.run("run")
        assert place.told("site", "list")["sites"][0]["pilots_live"] == 1
        told = place.told("site", "test", "lyon", "--timeout", "60")
        assert ([each["hop"] for each in told["hops"]], told["failed"]) == (HOPS, None)
        submitted = batch.keys()
        assert [key.rpartition("-")[0] for key in submitted] == ["lyon", "lyon-trial"]

        def pilots() -> int:
            return int(place.told("site", "list")["sites"][0]["pilots_live"])

        wait_until(lambda: pilots() == 1, "the pilot of the test leaves, and the other stays")
        batch.say("refused")
        told = place.told("site", "test", "lyon", "--timeout", "60", code=1)
        assert (told["failed"], "procbatch is refused" in told["hops"][-1]["stderr"]) == ("submit", True)
        (site,) = place.told("site", "list")["sites"]
        assert (site["status"], site["dead_starts"], site["pilots_live"]) == ("candidate", 0, 1)
        assert place.told("query", "--events", "type=SiteProbed and position>0")["events"] == []
    batch.end()
