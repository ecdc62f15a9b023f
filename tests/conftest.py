"""Fixtures that start real things: nodes, object stores. What a test starts ends with it."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import tests.support.kio_first  # noqa: F401
from service.cli import dev_nodes
from tests.support.processes import PORTS, Node, Ports
from tests.support.requirements import need_kafka_tools, need_versitygw
from tests.support.shares import (  # noqa: F401
    pytest_configure_node,
    pytest_pycollect_makemodule,
    pytest_xdist_make_scheduler,
)
from tests.support.stores import Store, folder_store, moto_server, new_bucket, versitygw_server

NodeFactory = Callable[..., Node]
StoreFactory = Callable[..., Store]
_bucket_numbers = itertools.count(1)

# Intervals at which a production node is patient, and a test is not.
BRISK = {
    "firn.merge.enable": "false",  # tests write old records, and look at the objects that they make
    "log.retention.check.interval.ms": "200",
    "remote.log.manager.task.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the run as Ctrl-C does: fixtures end what they started. Hypothesis is patient."""

    def ended(*_: object) -> None:
        pytest.exit("terminated", returncode=143)

    signal.signal(signal.SIGTERM, ended)
    if (
        signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ):  # under nohup: what tests start would ignore it, too
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        # A worker has told all that it knows: taking its heap apart, object by object, takes seconds.
        # Registered first, it is called last.
        atexit.register(os._exit, 0)
        # Ports are agreed on a moment before they are listened on: each worker has some of its own.
        PORTS[0] = Ports(int(config.workerinput["workerid"].removeprefix("gw")))
    setattr(dev_nodes, "FREE_PORTS", PORTS[0])  # noqa: B010
    from hypothesis import settings

    # How long one example takes says how busy the machine is.
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")


# pytest puts the name of a test into the environment, where Linux refuses 128 KiB (E2BIG).
MOST_OF_A_NAME = 1000


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its argument, length and checksum."""
    if not isinstance(val, str | bytes) or len(val) <= 100:
        return None
    checksum = zlib.crc32(val if isinstance(val, bytes) else val.encode("utf-8", "surrogatepass"))
    return f"{argname}-{len(val)}-{checksum:08x}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under `--dist loadgroup` a test goes to whichever worker is free.

    But those that share what their module has started go to one, and so do files of tests/process, of which
    some share what the machine has: a compiler's cache, LocalStack.
    """
    if long := [item.nodeid[:100] for item in items if len(item.nodeid) > MOST_OF_A_NAME]:
        raise pytest.UsageError(f"names of tests longer than {MOST_OF_A_NAME} characters: {long}")
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        folder = item.path.parent.name
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        if folder == "process" or any(found[-1].scope == "module" for found in fixtures):
            item.add_marker(pytest.mark.xdist_group(f"{folder}/{item.path.stem}"))


def pytest_collection() -> None:
    """Stop the collector while tests are imported: a third of that time is its looking at what stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look at it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java"):
        need_kafka_tools()
    if item.get_closest_marker("versitygw"):
        need_versitygw()


@pytest.fixture
def start_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeFactory]:
    """`start_node(store=None, env=…, **{"key": "value"})` starts a node with a fresh folder."""
    nodes: list[Node] = []

    def start(store: Store | None = None, env: Mapping[str, str] | None = None, **settings: str) -> Node:
        remote = store.node_settings if store is not None else {}
        remote_env = store.env if store is not None else {}
        node = Node(
            tmp_path / f"node-{len(nodes)}", {**BRISK, **remote, **settings}, {**remote_env, **(env or {})}
        )
        nodes.append(node)
        return node.start()

    yield start
    for node in nodes:
        node.close()
    if getattr(request.node, "failed_call", False):
        for node in nodes:
            print(node.log())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Leaves on the item whether its test failed, so that `start_node` can show the node's log."""
    report = yield
    if call.when == "call":
        item.failed_call = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture(scope="session")
def moto_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_server(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def versitygw_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_versitygw()
    with versitygw_server(tmp_path_factory.mktemp("versitygw")) as endpoint:
        yield endpoint


@pytest.fixture
def moto_store(moto_endpoint: str) -> Store:
    return new_bucket(moto_endpoint, f"firn-{os.getpid()}-{next(_bucket_numbers)}")


@pytest.fixture
def versitygw_store(versitygw_endpoint: str) -> Store:
    return new_bucket(versitygw_endpoint, f"firn-{os.getpid()}-{next(_bucket_numbers)}")


@pytest.fixture
def disk_store(tmp_path: Path) -> Store:
    """A cold tier in a folder."""
    return folder_store(tmp_path / "cold")
