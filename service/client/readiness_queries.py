"""Requests to brokers' `/readyz`, where their HTTP listeners can be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Final

from service.client.node_http import NodeHttp
from service.health.findings import from_json
from service.health.kinds import KINDS, RECOVERY, STORE

WAIT_S: Final = 3.0
"""Time-out of one broker: it may hang."""
MOST_BYTES: Final = 1 << 20
_MOST_SILENT: Final = 3
_ANCHORS: Final = frozenset(one.anchor for one in KINDS if one.part in (STORE, RECOVERY))


def ask_health(listeners: Mapping[int, str], http: NodeHttp) -> list[str]:
    """Return the words of each finding of brokers about their store or their recovery.

    `listeners`: URLs of HTTP listeners by broker id. A broker that cannot be reached is skipped: its
    listener may be on another machine's loopback. After three time-outs the rest are skipped, too: a packet
    filter may drop these requests.
    """
    problems: list[str] = []
    silent = 0
    for _, url in sorted(listeners.items()):
        try:
            problems += _words(http, f"{url}/readyz")
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
    return problems


def _words(http: NodeHttp, url: str) -> list[str]:
    told = from_json(json.loads(http.get(url, WAIT_S, MOST_BYTES))["findings"])
    return [one.words for one in told if one.anchor in _ANCHORS]
