"""The first lines of a node's log: software, identity, settings, and no secret."""

from __future__ import annotations

import platform
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from service.base.release import Release, _kernels
from service.config.settings import BrokerConfig
from service.node.banner import has_slow_kernels, starting

RELEASE = Release("0.1.0", "0123456789ab", "compiled")


def lines(properties: dict[str, str]) -> list[str]:
    return list(starting(BrokerConfig.from_properties(properties), RELEASE, 77))


def test_a_node_of_a_cluster_says_what_it_is_and_what_is_not_default() -> None:
    assert lines(
        {
            "node.id": "3",
            "process.roles": "broker,controller",
            "controller.quorum.voters": "1@a:9093,3@b:9093",
            "controller.listener.names": "CONTROLLER",
            "listeners": "OUTSIDE://0.0.0.0:9092,CONTROLLER://b:9093",
            "advertised.listeners": "OUTSIDE://b:9092",
            "inter.broker.listener.name": "OUTSIDE",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": "/data/a,/data/b",
            "broker.rack": "west",
            "firn.remote.url": "s3://bucket/prefix",
            "log.retention.ms": "1000",
            "num.partitions": "1",
            "log.cleaner.enable": "true",
        }
    ) == [
        f"firn 0.1.0 (commit 0123456789ab, kernels compiled), Python {platform.python_version()}, process 77",
        "node 3: broker and controller; listeners OUTSIDE://0.0.0.0:9092 (PLAINTEXT); controller listeners "
        "CONTROLLER://b:9093 (PLAINTEXT); controllers 1@a:9093, 3@b:9093; data in /data/a, /data/b; "
        "archive in s3://bucket/prefix; rack west",
        "not default: advertised.listeners=OUTSIDE://b:9092, broker.rack=west, "
        "controller.listener.names=CONTROLLER, controller.quorum.voters=1@a:9093,3@b:9093, "
        "firn.remote.url=s3://bucket/prefix, inter.broker.listener.name=OUTSIDE, "
        "listener.security.protocol.map=OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT, "
        "listeners=OUTSIDE://0.0.0.0:9092,CONTROLLER://b:9093, log.dirs=/data/a,/data/b, "
        "log.retention.ms=1000, node.id=3",
    ]


def test_secrets_are_hidden_and_foreign_text_cannot_begin_a_line() -> None:
    told = "\n".join(
        lines(
            {
                "listeners": "SASL_PLAINTEXT://:9092",
                "advertised.listeners": "SASL_PLAINTEXT://a:9092",
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required "
                    'username="me" password="hunter2" user_me="hunter2";'
                ),
                "broker.rack": "a\nERROR all is lost",
            }
        )
    )
    assert "hunter2" not in told
    assert "listener.name.sasl_plaintext.plain.sasl.jaas.config=[hidden]" in told
    assert len(told.splitlines()) == 3


def test_kernels_that_are_not_compiled_are_told(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "kernel.py").touch()
    assert _kernels(tmp_path) == "interpreted"
    assert has_slow_kernels(RELEASE._replace(kernels="interpreted"))
    (tmp_path / "records" / f"kernel{EXTENSION_SUFFIXES[0]}").touch()
    assert _kernels(tmp_path) == "compiled"
    assert has_slow_kernels(RELEASE) is False
