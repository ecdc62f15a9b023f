"""Throttles of responses that have a message: its time, or what its handler has set."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from service.base.slices import Slice
from service.network.metrics import OF_MUTATION
from service.network.request import Response, Throttled
from service.network.request_meter import RequestMeter, RequestQuotas
from service.quotas.mutations import MutationQuota
from service.wire.api import RequestHeader, decode_response_steps, millis, response_steps


def throttled(message: Any, meter: RequestMeter) -> tuple[Any, int]:
    """Return the response `message` with the throttle of its client, and this throttle in ms: the longer one
    of that of the request's time and that which the handler has set."""
    told = getattr(message, "throttle_time", None)
    told_ms = 0 if told is None else millis(told)
    own_ms = meter.answered()
    if own_ms <= told_ms:
        return message, told_ms
    if told is None:
        return message, own_ms  # this API cannot tell it
    return replace(message, throttle_time=timedelta(milliseconds=own_ms)), own_ms


def throttle_of(quotas: RequestQuotas, quota: MutationQuota | None) -> timedelta:
    """Return the throttle for the changes that `quota` has counted, as a handler sets it."""
    throttle_ms = 0 if quota is None else quota.throttle_ms()
    if throttle_ms:
        quotas.throttled(OF_MUTATION, throttle_ms)
    return timedelta(milliseconds=throttle_ms)


async def throttled_as_told(
    response: Response, header: RequestHeader, meter: RequestMeter | None
) -> Response:
    """Return the controller's `response` to a forwarded request, with its throttle or that of this node."""
    if meter is None:
        return response
    told_ms = round(response.mute_s * 1000) if isinstance(response, Throttled) else 0
    own_ms = meter.answered()
    if own_ms <= told_ms:
        return response
    frame = b"".join(part for part in response.parts if isinstance(part, bytes | bytearray | memoryview))
    piece = Slice()
    message = await piece.go_on(
        decode_response_steps(header.api_key, header.api_version, memoryview(frame)[4:])
    )
    if getattr(message, "throttle_time", None) is None:
        return Throttled(response.parts, own_ms / 1000)
    message = replace(message, throttle_time=timedelta(milliseconds=own_ms))
    return Throttled(await piece.go_on(response_steps(header, message)), own_ms / 1000)
