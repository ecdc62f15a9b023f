"""Error responses to whole requests, of the APIs that brokers forward and of any other. [P]

Source: ``getErrorResponse`` of Kafka's request classes. A response to a request that names topics, resources
or partitions has the error for each of them (`refused_arrays`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.types import Buffer
from service.wire.api import (
    APIS,
    RequestHeader,
    decode_request,
    is_served,
    own_response_class,
    response_frame,
    response_frame_as_is,
    response_module,
)
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


def refusal_frame(header: RequestHeader, frame: Buffer, code: ErrorCode) -> bytearray:
    """Return the whole response to a request that may not come now, whatever its API: `code` where the
    response has a field for it, else nothing but empty arrays. Raises `MalformedMessage`."""
    api = APIS[header.api_key]
    if api.refuse is not None:
        request = decode_request(header, frame, _MOST_ELEMENTS)
        return response_frame(header, refusal(header.api_key, request, code))
    if not is_served(header):
        header = header._replace(api_version=0)  # ApiVersions (KIP-511)
    response = own_response_class(header.api_key, header.api_version)
    has_code = any(one.name == "error_code" for one in fields(response))
    values = {"error_code": code} if has_code else {}
    return response_frame_as_is(header, entity_of_defaults(response, **values))


_MOST_ELEMENTS: Final = 1000
_EMPTY: Final[dict[str, Any]] = {
    "throttle_time": 0,
    "topics": (),
    "nodes": (),
    "entries": None,
    "resources": (),
    "responses": (),
    "results": (),
    "tokens": (),
    "replica_election_results": (),
    "brokers": (),
    "cluster_id": "",
    "config_resources": (),
    "directories": (),
    "should_shut_down": False,
    "producer_id_start": -1,
    "producer_id_len": 0,
}
