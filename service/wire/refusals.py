"""Error responses to whole requests, of the APIs that brokers forward and of any other. [P]

Source: ``getErrorResponse`` of Kafka's request classes. A response to a request that names topics, resources
or partitions has the error for each of them (`refused_arrays`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.types import Buffer
from service.wire.api import APIS, RequestHeader, decode_request, is_served, response_frame, response_module
from service.wire.schema import entity_of_defaults


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


def refusal_frame(header: RequestHeader, frame: Buffer, code: ErrorCode) -> bytearray | None:
    """Return the whole response to a request that may not come now, whatever its API: `code` where the
    response has a field for it, else nothing but empty arrays.

    None where the version has no canonical response: Produce and Fetch that name topics. Raises
    `MalformedMessage`.
    """
    api = APIS[header.api_key]
    if header.api_version < api.by_hand_before or not is_served(header):
        return None
    request = decode_request(header, frame, _MOST_ELEMENTS)
    if api.refuse is not None:
        return response_frame(header, refusal(header.api_key, request, code))
    response = getattr(response_module(header.api_key), f"{api.name}Response")
    known = {one.name for one in fields(response)}
    values = {"error_code": code} if "error_code" in known else {}
    return response_frame(header, entity_of_defaults(response, **values))


_MOST_ELEMENTS: Final = 1000
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
