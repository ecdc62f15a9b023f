"""Requests to all brokers at once, by one deadline: whoever does not answer costs no more than that, and is
named; the others' answers count."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from service.base.errors import StorageError
from service.client.admin import Cluster
from service.client.all_brokers import CommandDeadline, ask_each
from service.client.blocking_client import BlockingClient
from tests.support.world import WORLD


class Answering:
    """A connection to a broker that answers."""

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Brokers:
    """A `Cluster`: broker 1 and 4 answer, 2 accepts connections and is silent, 3 is not there."""

    def __init__(self, port: int) -> None:
        self.port = port

    def apart(self, broker: int, timeout_s: float, set_up_timeout_s: float) -> Any:
        if broker == 2:
            return BlockingClient(
                "127.0.0.1", self.port, timeout_s=timeout_s, set_up_timeout_s=set_up_timeout_s
            )
        if broker == 3:
            raise ConnectionRefusedError("nobody listens")
        return Answering()


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield Brokers(silent.getsockname()[1])


def test_a_broker_that_does_not_answer_is_named_and_the_others_count(brokers: Brokers) -> None:
    began = time.monotonic()
    found = ask_each(
        cast("Cluster", brokers), [1, 2, 3, 4], lambda broker, _: broker * 10, CommandDeadline(0.3, WORLD)
    )
    assert (found[1], found[4]) == (10, 40)
    assert isinstance(found[2], TimeoutError)
    assert str(found[3]) == "nobody listens"
    assert time.monotonic() - began < 5, "each has the whole deadline, not one after the other"


def test_a_refusal_is_an_answer(brokers: Brokers) -> None:
    def ask(broker: int, client: BlockingClient) -> None:
        raise StorageError(f"broker {broker} says no")

    found = ask_each(cast("Cluster", brokers), [1, 4], ask, CommandDeadline(20, WORLD))
    assert {one: str(why) for one, why in found.items()} == {1: "broker 1 says no", 4: "broker 4 says no"}


def test_a_call_that_lasts_longer_than_the_deadline_is_not_waited_for(brokers: Brokers) -> None:
    goes_on = threading.Event()
    try:
        found = ask_each(
            cast("Cluster", brokers), [1], lambda *_: goes_on.wait(20), CommandDeadline(0.05, WORLD)
        )
        assert str(found[1]) == "it did not answer within 0.05 s"
    finally:
        goes_on.set()


def test_an_empty_list_of_brokers_is_no_error(brokers: Brokers) -> None:
    assert ask_each(cast("Cluster", brokers), [], lambda *_: None, CommandDeadline(1, WORLD)) == {}
