"""Requests to brokers' `/readyz`, where their HTTP listeners can be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

WAIT_S: Final = 3.0
"""Time-out of one broker: it may hang."""
MOST_BYTES: Final = 1 << 20
_MOST_SILENT: Final = 3
_CHECKS: Final = ("store", "recovery")
"""Checks that Kafka's protocol has no request for."""


def http_url(listener: str, host: str, path: str) -> str:
    """Return the URL of a listener, at `host` where it listens at all addresses.

    >>> http_url("0.0.0.0:8080", "broker-1", "/readyz"), http_url("127.0.0.1:8080", "broker-1", "/readyz")
    ('http://broker-1:8080/readyz', 'http://127.0.0.1:8080/readyz')
    """
    at, _, port = listener.rpartition(":")
    return f"http://{host if at in ('', '*', '0.0.0.0', '::', '[::]') else at}:{port}{path}"


def ask_health(listeners: Mapping[int, tuple[str, str]]) -> list[str]:
    """Return a sentence for each problem of brokers with their store or their recovery.

    `listeners`: host and `firn.http.listener` by broker id. A broker that cannot be reached is skipped: its
    listener may be on another machine's loopback. After three time-outs the rest are skipped, too: a packet
    filter may drop these requests.
    """
    problems: list[str] = []
    silent = 0
    for broker, (host, listener) in sorted(listeners.items()):
        try:
            checks = _checks(http_url(listener, host, "/readyz"))
        except (
            OSError,
            HTTPException,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as e:
            silent += isinstance(getattr(e, "reason", e), TimeoutError)
            if silent == _MOST_SILENT:
                break
            continue
        problems += [f"broker {broker}: {what}: {why}" for what, why in checks]
    return problems


def _checks(url: str) -> list[tuple[str, str]]:
    answered = json.loads(_read(url))["checks"]
    checks = {what: answered.get(what, {}) for what in _CHECKS}
    return [(what, str(one["why"])) for what, one in checks.items() if one.get("why")]


def _read(url: str) -> bytes:
    try:
        with urlopen(url, timeout=WAIT_S) as answer:
            return bytes(answer.read(MOST_BYTES))
    except HTTPError as e:
        with e:  # a 503 has checks, too
            return e.read(MOST_BYTES)
