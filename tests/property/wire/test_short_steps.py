"""Each step of reading a request or writing a response is short, for messages of the most elements.

Steps are measured in CPU time of the thread, so that a busy machine does not matter; the bound is many times
what a step takes, and a small part of what a message takes.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from time import thread_time
from typing import Any

import pytest

from service.wire import schema
from service.wire.api import (
    APIS,
    ApiKey,
    decode_request_steps,
    encode_request,
    parse_request_header,
    request_module,
    response_module,
    response_steps,
)
from service.wire.fetch import parse_fetch_steps
from service.wire.primitives import write_uvarint
from service.wire.produce import parse_produce_steps
from tests.support.many import most_elements

ELEMENTS = 4_000
WORST_S = 0.005
BY_HAND = {ApiKey.PRODUCE: parse_produce_steps, ApiKey.FETCH: parse_fetch_steps}
TAGS = 60


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def longest_step(steps: Generator[None, None, Any]) -> tuple[float, float]:
    """The longest step, and all of them together."""
    longest = whole = 0.0
    while True:
        began = thread_time()
        try:
            next(steps)
        except StopIteration:
            return longest, whole
        finally:
            took = thread_time() - began
            longest, whole = max(longest, took), whole + took


def message_of(key: ApiKey, kind: str, count: int) -> Any:
    module = (request_module if kind == "Request" else response_module)(key)
    wanted = f"{key.name.replace('_', '')}{kind}".upper()
    return most_elements(getattr(module, next(one for one in dir(module) if one.upper() == wanted)), count)


def request_steps(key: ApiKey, message: Any) -> Generator[None, None, Any]:
    frame = memoryview(encode_request(key, APIS[key].max_version, 1, "client", message))[4:]
    header = parse_request_header(frame)
    if key in BY_HAND:
        return BY_HAND[key](header.api_version, frame, header.body)
    return decode_request_steps(header, frame)


def shortest_of_three(make: Any) -> tuple[float, float]:
    """Of three tries, as the machine may take the processor away in the middle of a step."""
    return min(longest_step(make()) for _ in range(3))


@pytest.mark.parametrize("key", [*APIS], ids=lambda key: ApiKey(key).name)
def test_reading_a_request_of_many_elements_has_short_steps(key: int) -> None:
    message = message_of(ApiKey(key), "Request", ELEMENTS)
    longest, whole = shortest_of_three(lambda: request_steps(ApiKey(key), message))
    assert longest < WORST_S, f"of {whole} s"


@pytest.mark.parametrize("key", [*APIS], ids=lambda key: ApiKey(key).name)
def test_writing_a_response_of_many_elements_has_short_steps(key: int) -> None:
    message = message_of(ApiKey(key), "Response", ELEMENTS)
    frame = encode_request(key, APIS[key].max_version, 1, "client", message_of(ApiKey(key), "Request", 0))
    header = parse_request_header(memoryview(frame)[4:])
    longest, whole = shortest_of_three(lambda: response_steps(header, message))
    assert longest < WORST_S, f"of {whole} s"


@pytest.mark.parametrize("key", [*APIS], ids=lambda key: ApiKey(key).name)
def test_unknown_tagged_fields_are_read_in_short_steps(key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_many(out: bytearray, plan: object, message: object) -> None:
        write_uvarint(out, TAGS)
        for tag in range(TAGS):
            write_uvarint(out, 1000 + tag)
            out.append(0)

    monkeypatch.setattr(schema, "_write_tagged", write_many)
    message = message_of(ApiKey(key), "Request", 1_000)
    longest, whole = shortest_of_three(lambda: request_steps(ApiKey(key), message))
    assert longest < WORST_S / 2, f"of {whole} s"
