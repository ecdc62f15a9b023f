"""Limits on new connections of a whole node: of one address, and per second."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from service.wire.api import ApiKey, api_versions_request, encode_request
from tests.node.conftest import NodeThread, Talk
from tests.node.test_one_thing_fails import alter
from tests.support.processes import wait_until

WANTED = encode_request(ApiKey.API_VERSIONS, 4, 1, "test", api_versions_request())
SHORT = {"quota_window_num": "2"}
"""an average over one whole window, a second"""


class Door:
    """Connections to a node, which `__exit__` closes."""

    def __init__(self, node: NodeThread) -> None:
        self.node = node
        self._open = ExitStack()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def dial(self, source: str = "127.0.0.1") -> socket.socket:
        """Open a connection."""
        return socket.create_connection(
            (self.node.host, self.node.port), timeout=20, source_address=(source, 0)
        )

    def knock(self, source: str = "127.0.0.1") -> socket.socket:
        """Open a connection and send a request on it."""
        one = self.dial(source)
        self._open.callback(one.close)
        one.sendall(WANTED)
        return one

    @property
    def arrivals(self) -> Any:
        return self.node.node.parts.listeners.arrivals

    def limit(self, limits: dict[tuple[str, str, str | None], dict[str, float]]) -> None:
        arrivals = self.arrivals
        self.node._loop.call_soon_threadsafe(arrivals.apply, limits)
        wait_until("the quotas to be there", lambda: arrivals._limits is limits)


def is_answered(one: socket.socket) -> bool:
    """Return whether there is a response; False if the connection ends."""
    try:
        return len(one.recv(4)) == 4
    except ConnectionResetError:
        return False


@pytest.fixture
def door(start: Callable[..., NodeThread], request: pytest.FixtureRequest) -> Iterator[Door]:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **getattr(request, "param", {})}
    with Door(start(**settings)) as one:
        yield one


@pytest.mark.parametrize("door", [{"max_connections_per_ip": "2"}], indirect=True)
def test_an_address_has_no_more_connections_than_it_may(door: Door) -> None:
    first, second, third = door.knock(), door.knock(), door.knock()
    assert (is_answered(first), is_answered(second), is_answered(third)) == (True, True, False)
    assert is_answered(door.knock("127.0.0.2")), "another address"
    first.close()
    wait_until("its end to be seen", lambda: door.arrivals._counts["127.0.0.1"] == 1)
    assert is_answered(door.knock())
    metrics = door.arrivals.metrics["PLAINTEXT"]
    assert (metrics.too_many_of_address, metrics.accepted) == (1, 4)


@pytest.mark.parametrize(
    "door",
    [{"max_connections_per_ip": "0", "max_connections_per_ip_overrides": "127.0.0.2:1,::1:7"}],
    indirect=True,
)
def test_an_address_can_have_a_number_of_its_own(door: Door) -> None:
    assert not is_answered(door.knock())
    kept = door.knock("127.0.0.2")
    assert is_answered(kept)
    assert not is_answered(door.knock("127.0.0.2"))


def test_the_number_can_change_while_the_node_runs(door: Door) -> None:
    with door.node.client() as client:
        talk = Talk(client)
        assert is_answered(door.knock())
        changed = alter(talk, 4, "", max_connections_per_ip="2")
        assert changed.error_code == 0, changed.error_message
        wait_until("the setting to be there", lambda: door.arrivals.config().max_connections_per_ip == 2)
        assert not is_answered(door.knock())


@pytest.mark.parametrize("door", [{"max_connection_creation_rate": "10", **SHORT}], indirect=True)
def test_connections_beyond_the_rate_wait_and_are_answered(door: Door) -> None:
    began = time.monotonic()
    for _ in range(30):
        assert is_answered(door.knock())
    took_s = time.monotonic() - began
    assert 1 < took_s < 6, "at ten a second, the first of them at once"
    assert door.arrivals.metrics["PLAINTEXT"].delayed.snapshot().observed > 5


def test_connections_of_an_address_beyond_its_rate_are_closed_after_a_while(door: Door) -> None:
    door.limit({("", "", "127.0.0.1"): {"connection_creation_rate": 1.0}})
    answered = [is_answered(door.knock()) for _ in range(10)]
    assert answered == [True] * 10, "ten seconds' worth"
    began = time.monotonic()
    refused = door.knock()
    assert is_answered(door.knock("127.0.0.2")), "it has no quota"
    assert not is_answered(refused)
    assert 0.3 < time.monotonic() - began < 2, "the throttle, a window at most"
    door.limit({("", "", None): {"connection_creation_rate": 1000.0}})
    assert is_answered(door.knock())
    metrics = door.arrivals.metrics["PLAINTEXT"]
    assert (metrics.throttled_of_address.snapshot().observed, metrics.accepted) == (1, 12)


def test_a_storm_of_one_address_leaves_others_alone_and_nothing_behind(door: Door) -> None:
    door.limit({("", "", None): {"connection_creation_rate": 2.0}})
    slowest_s = 0.0
    for n in range(300):
        with socket.create_connection((door.node.host, door.node.port), timeout=20):
            pass
        if n % 30 == 29:
            began = time.monotonic()
            assert is_answered(door.knock(f"127.0.1.{n % 250}"))
            slowest_s = max(slowest_s, time.monotonic() - began)
    assert slowest_s < 0.5
    assert door.arrivals.metrics["PLAINTEXT"].throttled_of_address.snapshot().observed >= 270
    wait_until("the throttled ones to be closed", lambda: door.arrivals.held == 0)
    wait_until("the others to be closed", lambda: door.arrivals._counts.get("127.0.0.1", 0) == 0)


@pytest.mark.parametrize("door", [SHORT], indirect=True)
def test_a_crowd_of_addresses_is_forgotten(door: Door) -> None:
    door.limit({("", "", None): {"connection_creation_rate": 1.0}})
    for n in range(500):
        with door.dial(f"127.1.{n // 250}.{n % 250 + 1}"):
            pass
    assert len(door.arrivals._of_addresses) <= 500
    wait_until("their connections to end", lambda: door.arrivals.addresses == 0)
    wait_until("them to be forgotten", lambda: len(door.arrivals._of_addresses) == 0, 20)


INSIDE_AND_OUTSIDE = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "advertised_listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "inter_broker_listener_name": "INSIDE",
    "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "max_connections": "2",
    "max_connection_creation_rate": "1",
    **SHORT,
}


@pytest.mark.parametrize("door", [INSIDE_AND_OUTSIDE], indirect=True)
def test_clients_do_not_keep_brokers_out(door: Door) -> None:
    inside, outside = (one.port for one in door.node.node.parts.listeners.servers)
    door.node.port = outside
    for _ in range(6):
        door.knock()
    time.sleep(0.3)
    door.node.port = inside
    began = time.monotonic()
    assert is_answered(door.knock())
    assert time.monotonic() - began < 1


OWN_LIMIT = {
    **{name: value for name, value in INSIDE_AND_OUTSIDE.items() if not name.startswith("max_")},
    "listener_name_outside_max_connections": "1",
}


@pytest.mark.parametrize("door", [OWN_LIMIT], indirect=True)
def test_a_listener_has_a_limit_of_its_own(door: Door) -> None:
    inside, outside = (one.port for one in door.node.node.parts.listeners.servers)
    door.node.port = outside
    first, second = door.knock(), door.knock()
    assert is_answered(first)
    door.node.port = inside
    assert is_answered(door.knock())
    second.settimeout(0.3)
    with pytest.raises(TimeoutError):
        second.recv(1)
    first.close()
    second.settimeout(20)
    assert is_answered(second)
