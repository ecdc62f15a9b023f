"""`firn cluster describe` by a list of addresses of which the first one takes connections and hangs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from service.base.clock import SystemClock
from service.base.world import system_world
from service.client import admin
from service.client.admin import Cluster
from service.client.cluster_health_queries import describe_health
from tests.node.conftest import NodeThread


def test_a_broker_that_hangs_is_waited_for_once(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "FIRST_GREETING_S", 0.3)
    monkeypatch.setattr(admin, "GREETING_S", 20.0)
    node = start()
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        hanging.settimeout(0)
        bootstrap = f"127.0.0.1:{hanging.getsockname()[1]},{node.host}:{node.port}"
        with system_world().threads.pool("describe", 2) as pool:
            found = describe_health(bootstrap, 10, pool, SystemClock())
        tried = 0
        while True:
            try:
                hanging.accept()[0].close()
            except BlockingIOError:
                break
            tried += 1
    assert found.is_well
    assert time.monotonic() - began < 15, "it gets a short time at first"
    assert tried == 1


def test_slow_brokers_get_a_second_and_longer_time_to_greet(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "FIRST_GREETING_S", 0.0)  # too short for any
    node = start()
    address = f"{node.host}:{node.port}"
    with Cluster(f"{address},{address}") as cluster:
        assert cluster.describe().nodes[0].port == node.port
