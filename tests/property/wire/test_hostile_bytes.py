"""A codec answers any bytes with a value or with `WireError`."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from service.wire.api import APIS, ApiKey, RequestHeader, decode_request, parse_request_header
from service.wire.errors import MalformedMessage, WireError
from service.wire.fetch import parse_fetch
from service.wire.produce import parse_produce
from tests.property.wire.schema_strategies import entities, kio_bytes
from tests.support import fuzzing

ENDS = [
    pytest.param(api.key, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    if not api.is_own
    for version in {
        api.min_version,
        min(max(api.flexible_from, api.min_version), api.max_version),
        api.max_version,
    }
]


def read(key: int, version: int, body: bytes) -> Any:
    view = memoryview(bytearray(body))
    if key == ApiKey.PRODUCE:
        return parse_produce(version, view)
    if key == ApiKey.FETCH:
        return parse_fetch(version, view)
    return decode_request(RequestHeader(key, version, 1, "", 0), view)


@pytest.mark.parametrize(("key", "version"), ENDS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_requests_are_refused_or_read(key: int, version: int, data: st.DataObject) -> None:
    body = bytearray(kio_bytes(data.draw(entities(load_request_schema(key, version)))))
    for _ in range(data.draw(st.integers(0, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedMessage):
        read(key, version, bytes(body[: data.draw(st.integers(0, len(body)))]))


@pytest.mark.parametrize(("key", "version"), ENDS)
def test_strings_that_are_no_utf8_are_read_with_replacements(
    monkeypatch: pytest.MonkeyPatch, key: int, version: int
) -> None:
    """Kafka reads them so, and a client takes its ids from host names of any encoding."""
    monkeypatch.setitem(fuzzing._SCALARS, "string", lambda random: "Zq~W" * random.randrange(4))
    for seed in range(20):
        body = kio_bytes(fuzzing.some(load_request_schema(key, version), Random(seed)))
        changed = body.replace(b"Zq~W", b"\xff\xe9\xff\xc1")
        expected = words(read(key, version, body)).replace("Zq~W", 4 * "\ufffd")
        assert words(read(key, version, changed)) == expected, f"seed {seed}"


def words(message: Any) -> str:
    """A message as text, but for where its bytes lie."""
    return re.sub("<memory at 0x[0-9a-f]+>|<[^<>]* object at 0x[0-9a-f]+>", "<memory>", repr(message))


@pytest.mark.parametrize(("key", "version"), ENDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_truncated_requests_are_refused(key: int, version: int, data: st.DataObject) -> None:
    body = kio_bytes(data.draw(entities(load_request_schema(key, version))))
    for length in range(len(body)):
        with pytest.raises(MalformedMessage):
            read(key, version, body[:length])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_has_no_header_or_an_honest_one(frame: bytes) -> None:
    try:
        header = parse_request_header(frame)
    except WireError:
        return
    assert header.api_key in APIS
    assert header.body <= len(frame)
