"""Which hop a pilot failed at, by the words that real ones leave."""

from __future__ import annotations

import pytest

from pilotage.app.site_setup.testing import HOPS, HopName, failed_at, hint_for

AGENT = "2026-11-15T15:00:00+0000 pilotage-agent: "


@pytest.mark.parametrize(
    "words, reason, hop",
    [
        ("/var/spool/slurmd/job3/slurm_script: line 8: exec: python3.9: not found", "failed", "python"),
        ("bash: python3: command not found", "failed", "python"),
        ("python3: can't open file '/home/me/agent.pyz': [Errno 2] No such file or directory", "failed", "python"),
        ('  File "agent.pyz/pilotage", line 1\nSyntaxError: invalid syntax', "failed", "python"),
        ("pilotage-agent: Python 3.8 or newer is needed, this is 3.6: /usr/bin/python3", "failed", "python"),
        (f"{AGENT}no answer from the service: [Errno 111] Connection refused", "ended", "server"),
        (f"{AGENT}the service did not answer for 300 s", "ended", "server"),
        (f"{AGENT}no answer from the service: HTTP 401: {{}}; the token in x is rejected", "ended", "exchange"),
        (f"{AGENT}no answer from the service: HTTP 403: forbidden", "ended", "exchange"),
        ("its node could not write to /home/me/.pilotage-site/output: the folder …", "failed", "starts"),
        ("NODE_FAIL", "platform-failure", "starts"),
        ("", "cancelled", "starts"),
        ("", "failed", "starts"),
        ("Lmod has detected the following error", "failed", "python"),
    ],
)
def test_the_hop_is_told_by_the_words_of_the_pilot(words: str, reason: str, hop: HopName) -> None:
    assert failed_at(words, reason=reason) == hop


def test_every_hop_has_a_sentence_and_something_to_do() -> None:
    assert all(hint_for(hop, "") for hop in HOPS)
    assert "site agent" in hint_for("submit", "", started_by="agent")
    assert "site agent" not in hint_for("submit", "")
    assert hint_for("python", "", started_by="agent") == hint_for("python", "")
    assert "all nodes share" in hint_for("starts", "its node could not write to /x")
