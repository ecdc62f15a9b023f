"""URLs that keys and tokens may come from. [P]"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from service.base.addresses import is_loopback

PORTS: Final = {"http": 80, "https": 443}


def url_problem(url: str) -> str | None:
    """Return why this URL is not asked for keys or tokens: https alone is, and http on this machine.

    >>> url_problem("http://issuer.example/keys"), url_problem("https://issuer.example/keys")
    ('is not encrypted: use https, or http on this machine', None)
    """
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is no URL"
    is_text = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in PORTS or not is_complete or not is_text:
        return "is no URL of https"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password, which do not belong into a URL"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return "is not encrypted: use https, or http on this machine"
    return None


def shown(url: str) -> str:
    """Return a URL for people, without what may be a secret: user, password, query.

    >>> shown("https://me:secret@issuer.example/keys?key=secret")
    'https://issuer.example/keys'
    """
    scheme, colon, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return scheme + colon + host.rpartition("@")[2] + slash + path
