"""Which addresses a webhook may reach: the public ones, and the networks that a setting adds.

Whoever may subscribe makes the service send requests. Without this they could reach what only the service can reach:
programs on its own machine, the metadata service of a cloud, the machines behind its firewall.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from pilotage.ports import BadAddress, NotDelivered

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")
EVERYTHING = ("0.0.0.0/0", "::/0")

_UNREACHABLE = "this host is in a network that webhooks may not reach"
_HOW_TO_REACH = "use a public address, or ask who runs the service to add its network to notifications.webhook_networks"


def default_networks(listen_host: str) -> tuple[str, ...]:
    """The networks beside the public ones where no setting names any: a service of this machine only may reach it."""
    try:
        local = listen_host == "localhost" or ipaddress.ip_address(listen_host).is_loopback
    except ValueError:
        local = False
    return LOOPBACK if local else ()


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as `10.0.0.0/8`; raises `BadAddress`."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError as fault:
            raise BadAddress(
                "this is not a network", subject=text[:80], expected="an address with a prefix, such as 10.0.0.0/8"
            ) from fault
    return tuple(found)


def connect(host: str, port: int, *, networks: tuple[Network, ...], timeout_seconds: float) -> socket.socket:
    """A connection to the first address of a host that may be reached; the address that is judged is the one used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise NotDelivered("the name of the host cannot be resolved", subject=host) from fault
    allowed = [each for each in found if _allowed(str(each[4][0]), networks)]
    if not allowed:
        raise NotDelivered(_UNREACHABLE, subject=host, next_step=_HOW_TO_REACH)
    last: OSError | None = None
    for family, kind, protocol, _, address in allowed:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout_seconds)
            connection.connect(address)
        except OSError as fault:
            connection.close()
            last = fault
        else:
            return connection
    raise NotDelivered(f"no connection: {reason(last)}", subject=host) from last


def check_literal(host: str, *, networks: tuple[Network, ...]) -> None:
    """Refuse an address, written as such, that may not be reached; what a name stands for is seen when it is used."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    if not _allowed(host, networks):
        raise BadAddress(_UNREACHABLE, subject=host, next_step=_HOW_TO_REACH)


def reason(fault: BaseException | None) -> str:
    """What a fault of the network is called, in a few words."""
    if isinstance(fault, TimeoutError):
        return "no answer in time"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror.lower()
    return type(fault).__name__


def _allowed(text: str, networks: tuple[Network, ...]) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address.version == network.version and address in network for network in networks):
        return True
    return address.is_global and not address.is_multicast
