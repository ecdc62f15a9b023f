"""Error responses to whole requests of the APIs that brokers forward. [P]

Source: ``getErrorResponse`` of Kafka's request classes. A response to a request that names topics, resources
or partitions has the error for each of them (`refused_arrays`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.wire.api import APIS, response_module


def refusal(api_key: int, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """Return the canonical response to the canonical `request` with `code` in each of its error fields."""
    api, module = APIS[api_key], response_module(api_key)
    response = getattr(module, f"{api.name}Response")
    error = {"error_code": code, "error_message": message}
    values: dict[str, Any] = {}
    for one in fields(response):
        if one.name in error:
            values[one.name] = error[one.name]
        elif one.name in _EMPTY:
            values[one.name] = _EMPTY[one.name]
    if api.refuse is not None:
        values |= api.refuse(module, request, error)
    return response(**values)


_EMPTY: Final[dict[str, Any]] = {
    "throttle_time": 0,
    "topics": (),
    "nodes": (),
    "entries": None,
    "resources": (),
    "responses": (),
    "results": (),
    "replica_election_results": (),
    "brokers": (),
    "cluster_id": "",
    "config_resources": (),
    "directories": (),
    "should_shut_down": False,
    "producer_id_start": -1,
    "producer_id_len": 0,
}
