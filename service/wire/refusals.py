"""One error as the answer to a whole request of an API that brokers forward, in the request's own shape. [P]

Source: ``getErrorResponse`` of Kafka's request classes: what names topics, resources or partitions hears it
for each of them (`refused_arrays`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.wire.api import APIS, response_module


def refusal(api_key: int, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """The canonical response to the canonical `request` that says `code` wherever it has a place for it."""
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
    "responses": (),
    "results": (),
    "replica_election_results": (),
    "producer_id_start": -1,
    "producer_id_len": 0,
}
