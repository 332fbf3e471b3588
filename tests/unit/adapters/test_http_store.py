"""Where the store of web servers goes, and where it does not."""

from __future__ import annotations

import pytest

from pilotage.adapters.stores.http import connections
from pilotage.adapters.stores.http.store import HttpStore
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import AccessDenied, StoreError
from tests.kit.canned_server import canned_server


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%eth0"])
def test_addresses_where_clouds_hand_out_credentials_are_known(address: str) -> None:
    assert connections._is_link_local(address)
    assert not connections._is_link_local("127.0.0.1")


def test_nobody_is_led_to_such_an_address_unless_it_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_is_link_local", lambda _: True)
    with canned_server() as server:
        server.answer("/a.dat", b"data")
        with pytest.raises(AccessDenied, match="own network"):
            HttpStore(StoreSettings()).stat(f"{server.url}/a.dat")
        assert server.asked == []
        described = HttpStore(StoreSettings(url=server.url))
        assert described.stat(f"{server.url}/a.dat") is not None
        described.close()


@pytest.mark.parametrize("locator", ["https:///a", "ftp://host/a", "https://a:b@host/", "https://host/a#b"])
def test_what_is_no_file_of_a_web_server_is_refused(locator: str) -> None:
    with pytest.raises(StoreError):
        HttpStore(StoreSettings()).stat(locator)
