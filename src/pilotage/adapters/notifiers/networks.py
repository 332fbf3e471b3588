"""Which addresses a webhook may reach: public ones, and the networks that a setting adds.

A subscriber makes the service send requests. Without this check they could reach what only the service can reach:
programs on its own machine, the metadata service of a cloud, machines behind its firewall.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from pilotage.ports import BadAddress, NotDelivered

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOOPBACK = ("127.0.0.0/8", "::1/128")
EVERYTHING = ("0.0.0.0/0", "::/0")

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: IPv4 addresses behind a NAT64
_ISATAP = 0x0000_5EFE  # RFC 5214: the third quarter of an address, except for one bit
_TUNNELS = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "::/96",  # IPv4-compatible, RFC 4291
        "64:ff9b:1::/48",  # local-use NAT64, RFC 8215
        "2001::/32",  # Teredo, RFC 4380
        "2002::/16",  # 6to4, RFC 3056
    )
)
_UNREACHABLE = "this host is in a network that webhooks may not reach"
_HOW_TO_REACH = (
    "use a public address, or ask the service's operator to add its network to notifications.webhook_networks"
)


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks such as `10.0.0.0/8`; raises `BadAddress`."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError as fault:
            raise BadAddress(
                "not a network", subject=text[:80], expected="an address with a prefix, such as 10.0.0.0/8"
            ) from fault
    return tuple(found)


def connect(host: str, port: int, *, networks: tuple[Network, ...], timeout_seconds: float) -> socket.socket:
    """Connect to the first allowed address of a host; the checked address is the one used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise NotDelivered("cannot resolve the host name", subject=host) from fault
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
    """Refuse a numeric address that is not allowed; host names are checked when they are resolved."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    if not _allowed(host, networks):
        raise BadAddress(_UNREACHABLE, subject=host, next_step=_HOW_TO_REACH)


def reason(fault: BaseException | None) -> str:
    """A network error in a few words."""
    if isinstance(fault, TimeoutError):
        return "no answer in time"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror.lower()
    return type(fault).__name__


def _allowed(text: str, networks: tuple[Network, ...]) -> bool:
    address = _meant(ipaddress.ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in networks):
        return True
    if isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or _is_tunnel(address)):
        return False
    return address.is_global and not address.is_multicast


def _meant(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 one that leads to it."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _TRANSLATED or (number >> 32) & 0xFDFF_FFFF == _ISATAP:
        return ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    return address


def _is_tunnel(address: ipaddress.IPv6Address) -> bool:
    """Tell whether an address leads through a tunnel or a translation, whose other end may be anywhere."""
    return any(address in network for network in _TUNNELS)
