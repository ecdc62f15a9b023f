"""What brokers say of themselves at `/readyz`, where their HTTP listeners can be reached from here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

WAIT_S: Final = 3.0
"""So long is waited for one broker: it may hang."""
MOST_BYTES: Final = 1 << 20
_AT_ONCE: Final = 8
_TOLD: Final = ("store", "recovery")
"""Checks that nothing in Kafka's protocol tells of."""


def http_url(listener: str, host: str, path: str) -> str:
    """The address of a listener, of `host` where it listens at all addresses.

    >>> http_url("0.0.0.0:8080", "broker-1", "/readyz"), http_url("127.0.0.1:8080", "broker-1", "/readyz")
    ('http://broker-1:8080/readyz', 'http://127.0.0.1:8080/readyz')
    """
    at, _, port = listener.rpartition(":")
    return f"http://{host if at in ('', '*', '0.0.0.0', '::', '[::]') else at}:{port}{path}"


def ask_health(listeners: Mapping[int, tuple[str, str]]) -> list[str]:
    """What is not as it should be with stores and recoveries, in words, by broker.

    `listeners`: host and `firn.http.listener` by broker id. A broker that cannot be reached says nothing: its
    listener may be of another machine's loopback.
    """
    if not listeners:
        return []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {
            broker: pool.submit(_checks, http_url(listener, host, "/readyz"))
            for broker, (host, listener) in sorted(listeners.items())
        }
        return [
            f"broker {broker}: {what}: {why}"
            for broker, found in asked.items()
            for what, why in found.result()
        ]


def _checks(url: str) -> list[tuple[str, str]]:
    try:
        told = json.loads(_read(url))
        checks = {what: told["checks"].get(what, {}) for what in _TOLD}
        return [(what, str(one["why"])) for what, one in checks.items() if one.get("why")]
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _read(url: str) -> Any:
    try:
        with urlopen(url, timeout=WAIT_S) as answer:
            return answer.read(MOST_BYTES)
    except HTTPError as e:
        with e:  # 503 has checks, too
            return e.read(MOST_BYTES)
