"""Formats that a scraper accepts, from its headers Accept and Accept-Encoding (RFC 9110). [P]"""

from __future__ import annotations

from collections.abc import Iterator

_OPENMETRICS = "application/openmetrics-text"
_PLAIN = "text/plain"


def prefers_openmetrics(accept: str) -> bool:
    """Return whether the header names OpenMetrics, and prefers no plain text to it.

    >>> prefers_openmetrics("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    True
    >>> prefers_openmetrics("*/*")
    False
    """
    best = {_OPENMETRICS: 0.0, _PLAIN: 0.0}
    for name, weight in _entries(accept):
        if name in best:
            best[name] = max(best[name], weight)
    return best[_OPENMETRICS] > 0 and best[_OPENMETRICS] >= best[_PLAIN]


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the header allows gzip.

    >>> accepts_gzip("gzip;q=0, *")
    False
    """
    weights = dict(_entries(accept_encoding))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _entries(header: str) -> Iterator[tuple[str, float]]:
    """Yield name and weight of each entry; one that is malformed weighs nothing."""
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                weight = _weight(value.strip())
        yield name.lower(), weight


def _weight(text: str) -> float:
    digits = text.replace(".", "", 1)
    if not digits.isascii() or not digits.isdigit():
        return 0.0
    return min(float(text), 1.0)
