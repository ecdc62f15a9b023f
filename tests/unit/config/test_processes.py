"""Settings of each process of a machine, from one file: the table of docs/operations.md, written out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config.explaining import explain
from service.config.given import GivenConfig, gather
from service.config.processes import SHARED, processes_of
from service.config.settings import BrokerConfig
from service.config.tables import BROKER_KEYS

FILE = """\
firn.processes=4
node.id=3
broker.rack=zone-1
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=a:9093,b:9093,c:9093
controller.quorum.auto.join.enable=true
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners=PLAINTEXT://c:9092,CONTROLLER://c:9093
log.dirs=/disk-1,/disk-2
metadata.log.dir=/meta
firn.http.listener=:9464
firn.remote.url=s3://bucket/firn
firn.remote.cache.dir=/cache
firn.remote.cache.dir.bytes=4294967296
firn.remote.cache.bytes=536870912
queued.max.request.bytes=1073741824
remote.log.manager.copy.max.bytes.per.second=100000000
log.cleaner.io.max.bytes.per.second=50000000
"""


def given(tmp_path: Path, text: str, **more: str) -> GivenConfig:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return gather(path, tuple(more.items()), {})


def of(settings: Mapping[str, str], cores: int = 2) -> tuple[GivenConfig, ...]:
    return processes_of(gather(None, tuple(settings.items()), {}), cores)


SHARES = {
    "firn.remote.cache.dir.bytes": "1073741824",
    "firn.remote.cache.bytes": "134217728",
    "queued.max.request.bytes": "268435456",
    "remote.log.manager.copy.max.bytes.per.second": "25000000",
    "log.cleaner.io.max.bytes.per.second": "12500000.0",
}
TABLE = (
    {"firn.remote.cache.dir": "/cache/processes/3", **SHARES},
    {
        "node.id": "1003",
        "process.roles": "broker",
        "listeners": "PLAINTEXT://:9102",
        "advertised.listeners": "PLAINTEXT://c:9102",
        "log.dirs": "/disk-1/processes/1003,/disk-2/processes/1003",
        "metadata.log.dir": "/meta/processes/1003",
        "firn.http.listener": ":9474",
        "firn.remote.cache.dir": "/cache/processes/1003",
        "controller.quorum.auto.join.enable": None,
        **SHARES,
    },
    {
        "node.id": "2003",
        "process.roles": "broker",
        "listeners": "PLAINTEXT://:9112",
        "advertised.listeners": "PLAINTEXT://c:9112",
        "log.dirs": "/disk-1/processes/2003,/disk-2/processes/2003",
        "metadata.log.dir": "/meta/processes/2003",
        "firn.http.listener": ":9484",
        "firn.remote.cache.dir": "/cache/processes/2003",
        "controller.quorum.auto.join.enable": None,
        **SHARES,
    },
    {
        "node.id": "3003",
        "process.roles": "broker",
        "listeners": "PLAINTEXT://:9122",
        "advertised.listeners": "PLAINTEXT://c:9122",
        "log.dirs": "/disk-1/processes/3003,/disk-2/processes/3003",
        "metadata.log.dir": "/meta/processes/3003",
        "firn.http.listener": ":9494",
        "firn.remote.cache.dir": "/cache/processes/3003",
        "controller.quorum.auto.join.enable": None,
        **SHARES,
    },
)


def test_four_processes_of_one_file(tmp_path: Path) -> None:
    file = given(tmp_path, FILE)
    processes = processes_of(file, cores=2)
    found = explain(file)
    assert (found.problems, len(processes)) == ([], 4)
    assert tuple(one.settings for one in found.processes) == TABLE
    configs = [one.checked(BrokerConfig.from_properties) for one in processes]
    assert [one.broker_rack for one in configs] == ["zone-1"] * 4
    assert [one.cluster.is_controller for one in configs] == [True, False, False, False]
    assert {one.cluster.quorum.bootstrap_servers for one in configs} == {
        configs[0].cluster.quorum.bootstrap_servers
    }
    machines = {frozenset(one.host for one in config.advertised_listeners) for config in configs}
    assert machines == {frozenset({"c"})}  # what placement knows a machine by


def test_one_process_has_the_file_as_it_is(tmp_path: Path) -> None:
    file = given(tmp_path, FILE, **{"firn.processes": "1"})
    assert processes_of(file, cores=8) == (file,)
    assert explain(file, cores=8).processes == []


def test_a_machine_without_any_settings_is_a_cluster_of_its_own() -> None:
    """The first is controller, too, on the loopback interface; the others find it there."""
    first, second = (one.checked(BrokerConfig.from_properties) for one in of({"firn.processes": "auto"}))
    assert [str(one) for one in first.cluster.controller_listeners] == ["CONTROLLER://127.0.0.1:9093"]
    assert first.cluster.is_alone
    assert first.cluster.is_member
    assert [str(one) for one in second.cluster.quorum.bootstrap_servers] == ["127.0.0.1:9093"]
    assert [str(one.listeners[0]) for one in (first, second)] == [
        "PLAINTEXT://127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:9102",
    ]
    assert [one.node_id for one in (first, second)] == [1, 1001]


def test_auto_is_a_process_for_each_core() -> None:
    assert len(of({"firn.processes": "auto"}, cores=5)) == 5
    assert len(of({"firn.processes": "auto"}, cores=96)) == 64


def test_static_voters_stay_as_they_are() -> None:
    settings = {
        "firn.processes": "2",
        "broker.id": "1",
        "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
    }
    first, second = (one.checked(BrokerConfig.from_properties) for one in of(settings))
    assert first.cluster.quorum.voters == second.cluster.quorum.voters
    assert (first.cluster.is_static_voter, second.cluster.is_static_voter) == (True, False)


def test_a_pure_broker_is_as_many() -> None:
    settings = {
        "firn.processes": "2",
        "process.roles": "broker",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "a:9093",
        "listeners": "PLAINTEXT://d:9092",
        "node.id": "4",
    }
    configs = [one.checked(BrokerConfig.from_properties) for one in of(settings)]
    assert [(one.node_id, one.process_roles) for one in configs] == [(4, ("broker",)), (1004, ("broker",))]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"firn.processes": "0"}, "Expected auto, or a number from 1 to 64"),
        ({"firn.processes": "65"}, "Expected auto, or a number from 1 to 64"),
        ({"firn.processes": "all"}, "Expected auto, or a number from 1 to 64"),
        (
            {"firn.processes.port.step": "1"},
            "PLAINTEXT of process 2 and CONTROLLER of process 1 have port 9093",
        ),
        (
            {"firn.http.listener": "127.0.0.1:9102"},
            "PLAINTEXT of process 2 and firn.http.listener of process 1",
        ),
        ({"firn.http.listener": "everywhere"}, "invalid value 'everywhere': Expected host:port"),
        ({"firn.processes.port.step": "60000"}, "port 9092 \\+ 60000 is no port"),
        ({"firn.processes.id.step": "2147483647"}, "process 2 of 2 would have the id 2147483648"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "2 processes need a controller"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "2 processes need a controller"),
        ({"firn.remote.cache.bytes": "9000000"}, "each of 2 processes has 4500000, and needs 8388608"),
        (
            {
                "process.roles": "controller",
                "controller.listener.names": "C",
                "listeners": "C://a:9093",
                "listener.security.protocol.map": "C:PLAINTEXT",
                "controller.quorum.bootstrap.servers": "a:9093",
            },
            "process.roles has no broker",
        ),
    ],
)
def test_impossible_settings_are_refused(settings: Mapping[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        of({"firn.processes": "2", **settings})


def test_problems_of_one_process_are_told_with_its_number() -> None:
    """The share of memory is enough for the key, and too little for one request."""
    file = gather(None, (("firn.processes", "2"), ("queued.max.request.bytes", "150000000")), {})
    found = explain(file)
    assert [str(one).partition(" --set")[0].split(": queued")[0] for one in found.problems] == [
        "process 1:",
        "process 2:",
    ]


def test_a_hidden_value_stays_hidden() -> None:
    settings = (
        ("firn.processes", "2"),
        ("config.providers", "e"),
        ("config.providers.e.class", "org.apache.kafka.common.config.provider.EnvVarConfigProvider"),
        ("log.dirs", "/data/${e:PLACE}"),
    )
    found = explain(gather(None, settings, {"PLACE": "somewhere"}))
    assert found.processes[1].settings["log.dirs"] == "/data/${e:PLACE}/processes/1001"


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_key_is_a_number_of_the_node(name: str) -> None:
    assert name in BROKER_KEYS
    assert BROKER_KEYS[name].type.name in ("INT", "LONG", "DOUBLE")
