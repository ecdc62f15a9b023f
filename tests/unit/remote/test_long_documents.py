"""Long documents of the bucket: encoded and parsed like short ones, while other threads run."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.remote.format.documents import dump
from service.remote.format.fields import parse_json_object

ROW = {"base_offset": 2**40, "key": 'data/\u00e9/"quoted"', "leader_epochs": [[1, 2], [3, 4]], "none": None}
LONG = {"format": "f", "rows": [{**ROW, "size": number} for number in range(20_000)]}


@contextmanager
def other_thread() -> Iterator[Callable[[], int]]:
    """Run a thread that wants the interpreter again and again; yield how often it has had it."""
    turns, is_over, interval = [0], threading.Event(), sys.getswitchinterval()

    def run() -> None:
        while not is_over.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=run)
    sys.setswitchinterval(0.0001)
    thread.start()
    try:
        yield lambda: turns[0]
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"a": []},
        {"a": [1] * 31, "b": [[]] * 32, "c": [{}] * 33},
        {"a": list(range(64)), "b": (None,) * 65, "c": {"d": list(range(100))}, "e": "f"},
        {"rows": [{**ROW, "size": number} for number in range(1000)], "after": True},
    ],
)
def test_bytes_are_those_of_the_plain_encoder(document: dict[str, Any]) -> None:
    expected = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    assert dump(document) == expected
    assert parse_json_object(expected, "it") == json.loads(expected)


def test_other_threads_run_while_a_long_document_is_encoded_and_parsed() -> None:
    data = dump(LONG)
    with other_thread() as turns:
        for work in (lambda: dump(LONG), lambda: parse_json_object(data, "it")):
            before = turns()
            work()
            assert turns() - before > 20
