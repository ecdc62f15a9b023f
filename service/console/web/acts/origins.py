"""Origin of a form that changes something: whether a page of this console sent it. [P]

Stricter than for the form of the token: something must say so. Pages with such forms have ``Referrer-Policy:
same-origin``, so browsers tell their origin, and none but this console is told anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SCHEMES: Final = ("http://", "https://")


def is_own_form(headers: Mapping[str, str], *, is_sealed: bool) -> bool:
    """Return whether these headers are of a request that a page of this console has sent.

    Sec-Fetch-Site decides where a browser sends it, and Origin, or Referer without an Origin, besides. A
    request that says nothing is refused, and so is ``Origin: null``. `is_sealed`: the console speaks HTTPS.
    """
    if headers.get("Sec-Fetch-Site", "same-origin").strip().lower() != "same-origin":
        return False
    host = headers.get("Host", "").strip().lower()
    origin = headers.get("Origin")
    if origin is None:
        origin = _origin_of(headers.get("Referer", ""))
    origin = origin.strip().lower()
    for scheme in _SCHEMES[1:] if is_sealed else _SCHEMES:
        if origin.startswith(scheme):
            return bool(host) and origin[len(scheme) :] == host
    return False


def _origin_of(address: str) -> str:
    """Return scheme and authority of an address, without what may be in front of an @."""
    scheme, separator, rest = address.partition("://")
    authority = rest
    for end in "/?#\\":
        authority = authority.partition(end)[0]
    return f"{scheme}{separator}{authority}"
