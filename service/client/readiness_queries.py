"""Requests to brokers' `/readyz`, where their HTTP listeners can be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Final

from service.client.node_http import NodeHttp

WAIT_S: Final = 3.0
"""Time-out of one broker: it may hang."""
MOST_BYTES: Final = 1 << 20
_MOST_SILENT: Final = 3
_CHECKS: Final = ("store", "recovery")
"""Checks that Kafka's protocol has no request for."""


def ask_health(listeners: Mapping[int, str], http: NodeHttp) -> list[str]:
    """Return a sentence for each problem of brokers with their store or their recovery.

    `listeners`: URLs of HTTP listeners by broker id. A broker that cannot be reached is skipped: its
    listener may be on another machine's loopback. After three time-outs the rest are skipped, too: a packet
    filter may drop these requests.
    """
    problems: list[str] = []
    silent = 0
    for broker, url in sorted(listeners.items()):
        try:
            checks = _checks(http, f"{url}/readyz")
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


def _checks(http: NodeHttp, url: str) -> list[tuple[str, str]]:
    answered = json.loads(http.get(url, WAIT_S, MOST_BYTES))["checks"]
    checks = {what: answered.get(what, {}) for what in _CHECKS}
    return [(what, str(one["why"])) for what, one in checks.items() if one.get("why")]
