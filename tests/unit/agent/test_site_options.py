"""What a site agent must be told to start."""

from __future__ import annotations

import argparse

import pytest

from pilotage.agent.site.program import add_options


@pytest.mark.parametrize("given, missing", [(["--site", "lyon"], "--server"), (["--server", "unix:s"], "--site")])
def test_a_site_agent_needs_a_server_and_the_name_of_its_site(
    given: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(given)
    assert f"required: {missing}" in capsys.readouterr().err
