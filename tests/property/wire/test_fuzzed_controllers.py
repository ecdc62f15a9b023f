"""Frames of what nodes say to each other, damaged in every way: read, or refused by name, within bounds.

`python -m tests.property.wire.test_fuzzed_controllers FRAMES [SEED]` does as many as one likes.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import Counter
from random import Random

from service.wire.api import ApiKey, decode_request, decode_response, parse_request_header
from service.wire.apis import ListenerType, served_on
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.fetch import parse_fetch
from service.wire.primitives import MAX_ELEMENTS
from tests.support.fuzzing import damage, pair


def fuzz(frames: int, seed: int) -> Counter[str]:
    """Read so many damaged frames; what came of them."""
    random = Random(seed)
    kinds = [
        (api.key, version)
        for api in served_on(ListenerType.CONTROLLER)
        for version in range(api.min_version, api.max_version + 1)
    ]
    seen: Counter[str] = Counter()
    sound: tuple[bytes, bytes] = b"", b""
    key = version = silent = 0
    for number in range(frames // 2):
        if number % 8 == 0:
            key, version = kinds[(number // 8) % len(kinds)]
            sound = pair(key, version, random)
        view = memoryview(bytearray(damage(sound[0], random, 4)))
        try:
            header = parse_request_header(view)
            if header.api_key == ApiKey.FETCH:
                parse_fetch(header.api_version, view, header.body, MAX_ELEMENTS)
            else:
                decode_request(header, view)
            seen["requests read"] += 1
        except (MalformedMessage, UnsupportedRequest) as e:
            seen["requests refused"] += 1
            silent += not str(e)
        try:
            decode_response(key, version, memoryview(damage(sound[1], random, 4)))
            seen["answers read"] += 1
        except MalformedMessage as e:
            seen["answers refused"] += 1
            silent += not str(e)
    assert not silent, "refused without a word"
    return seen


def test_damaged_frames_are_read_or_refused_by_name_and_cost_little() -> None:
    fuzz(2_000, 1)  # codecs are compiled, modules loaded
    tracemalloc.start()
    try:
        seen = fuzz(6_000, 14)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert min(seen.values()) > 300, seen
    assert peak < 8 << 20


if __name__ == "__main__":
    began = time.monotonic()
    count, chosen = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    found = fuzz(count, chosen)
    rate = count / (time.monotonic() - began)
    print(f"seed {chosen}: {dict(found)}; {rate:.0f} frames a second to the codecs")
