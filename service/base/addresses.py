"""Texts of network addresses: the one that is compared, and those by which others may name it. [P]"""

from __future__ import annotations

import ipaddress


def normalized(address: str) -> str:
    """Return the one text of an address, without a zone; an IPv4 address in IPv6's form is an IPv4 address.
    A text that is no address stays as it is.

    >>> normalized("::FFFF:192.0.2.1"), normalized("fe80:0::1%eth0")
    ('192.0.2.1', 'fe80::1')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def names_of(host: str) -> tuple[str, ...]:
    """Return the texts that name a peer's address `host`: its own first, then, of IPv6, the normalized one
    and Java's (``InetAddress.getHostAddress``), with and without the zone.

    >>> names_of("192.0.2.1"), names_of("2001:db8::1")
    (('192.0.2.1',), ('2001:db8::1', '2001:db8:0:0:0:0:0:1'))
    """
    if ":" not in host:
        return (host,)
    short, _, zone = host.partition("%")
    try:
        found = ipaddress.IPv6Address(short)
    except ValueError:
        return (host,)
    if found.ipv4_mapped is not None:
        return host, str(found.ipv4_mapped)
    long = ":".join([group.lstrip("0") or "0" for group in found.exploded.split(":")])
    names = [host, str(found), long]
    if zone:
        names.append(f"{long}%{zone}")
    return tuple(dict.fromkeys(names))
