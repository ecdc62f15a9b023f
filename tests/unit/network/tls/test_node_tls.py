"""Certificates that change while a node runs: taken, refused with the reason, and taken later."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from service.base.errors import ConfigError
from service.base.world import system_world
from service.config.cluster import ClusterConfig
from service.config.security import NodeSecurity, TlsSettings
from service.network.metrics import NetworkMetrics
from service.network.tls import node_tls
from service.network.tls.node_tls import NodeTls
from service.network.tls.stores import StoreFiles, Stores
from tests.support.certificates import Authority, Issued

CA = Authority()


class Files:
    def __init__(self, folder: Path) -> None:
        self.keys, self.trust = folder / "keys.pem", folder / "trust.pem"
        self.put(CA.issue("node"))
        self.trust.write_text(CA.pem)

    def put(self, issued: Issued) -> None:
        issued.write(self.keys)

    def security(self, **more: str) -> NodeSecurity:
        """Two brokers with an SSL listener each, this one and its like."""
        return ClusterConfig.from_properties(
            {
                "listeners": "SSL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "SSL",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.2:9093",
                "ssl.keystore.location": str(self.keys),
                "ssl.truststore.location": str(self.trust),
                "ssl.client.auth": "required",
                "firn.ssl.reload.interval.ms": "20",
                **more,
            }
        ).security


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def running(security: NodeSecurity, test: Callable[[NodeTls], Awaitable[None]]) -> None:
    async def run() -> None:
        tls = NodeTls(security, system_world(), NetworkMetrics())
        tls.start()
        try:
            await test(tls)
        finally:
            tls.close()

    asyncio.run(run())


def shown(tls: NodeTls) -> Any:
    listener = tls.listener("SSL")
    return listener.context.keys.certificates[0]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def der(issued: Issued) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return issued.certificate.public_bytes(Encoding.DER)


def test_a_changed_file_is_taken_by_the_listener_and_by_connections_to_others(files: Files) -> None:
    async def test(tls: NodeTls) -> None:
        assert tls.inter_broker is not None
        client, new = tls.inter_broker.context, CA.issue("node", days=99)
        assert 9 < tls.days_left()["SSL"] < 10
        files.put(new)
        await until(lambda: shown(tls) == der(new))
        assert tls.inter_broker.context is not client
        assert 98 < tls.days_left()["SSL"] < 99
        assert tls.problems == {}

    running(files.security(), test)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda files: files.keys.write_text(files.keys.read_text()[:-100]), "does not end as it begins"),
        (lambda files: files.keys.unlink(), "No such file"),
        (
            lambda files: files.keys.write_text(CA.issue("node").key_pem() + CA.issue("node").pem),
            "does not belong",
        ),
        (lambda files: files.put(CA.issue("another")), "ssl.allow.dn.changes"),
        (lambda files: files.put(CA.issue("node", hosts=("localhost",))), "ssl.allow.san.changes"),
        (
            lambda files: files.put(Authority("Other").issue("node")),
            "brokers could not connect to each other",
        ),
        (
            lambda files: files.trust.write_text(Authority("Other").pem),
            "brokers could not connect to each other",
        ),
        (lambda files: files.put(CA.issue("node", days=-0.5)), "brokers could not connect"),
    ],
)
def test_a_change_that_cannot_be_used_changes_nothing_and_says_why(
    files: Files, change: Callable[[Files], None], reason: str
) -> None:
    async def test(tls: NodeTls) -> None:
        before, keys, trust = shown(tls), files.keys.read_text(), files.trust.read_text()
        change(files)
        await until(lambda: reason in tls.problems.get("SSL", ""))
        assert shown(tls) == before
        files.keys.write_text(keys)
        files.trust.write_text(trust)
        await until(lambda: not tls.problems)
        new = CA.issue("node")
        files.put(new)
        await until(lambda: shown(tls) == der(new))

    running(files.security(), test)


def test_an_error_of_a_library_is_told_once_and_the_looks_go_on(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[TlsSettings] = []

    def open_stores(settings: TlsSettings, files: StoreFiles) -> Stores:
        looked.append(settings)
        raise UnsupportedAlgorithm("a key of 7 bits")

    async def test(tls: NodeTls) -> None:
        before = shown(tls)
        monkeypatch.setattr(node_tls, "open_stores", open_stores)
        new = CA.issue("node")
        files.put(new)
        await until(lambda: len(looked) >= 6)
        assert tls.problems == {"SSL": "UnsupportedAlgorithm: see the log"}
        assert shown(tls) == before
        monkeypatch.undo()
        await until(lambda: shown(tls) == der(new))
        assert tls.problems == {}

    running(files.security(), test)
    assert caplog.text.count("UnsupportedAlgorithm: a key of 7 bits") == 1


def test_other_names_are_taken_where_they_are_allowed(files: Files) -> None:
    async def test(tls: NodeTls) -> None:
        new = CA.issue("another", hosts=("other.example",))
        files.put(new)
        await until(lambda: shown(tls) == der(new))

    running(files.security(**{"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}), test)


def test_trust_is_taken_before_a_key_that_needs_it(files: Files) -> None:
    async def test(tls: NodeTls) -> None:
        second = Authority("Second")
        new = second.issue("node")
        files.trust.write_text(CA.pem + second.pem)
        files.put(new)
        await until(lambda: shown(tls) == der(new))

    running(files.security(), test)


def test_another_file_is_taken_when_the_settings_name_it(files: Files, tmp_path: Path) -> None:
    async def test(tls: NodeTls) -> None:
        new = CA.issue("node")
        other = new.write(tmp_path / "other.pem")
        changed = files.security(**{"listener.name.ssl.ssl.keystore.location": other})
        assert await tls.refusal(changed) is None
        tls.configure(changed)
        await tls.settled()
        assert shown(tls) == der(new)
        wrong = files.security(**{"listener.name.ssl.ssl.keystore.location": str(tmp_path / "none.pem")})
        refusal = await tls.refusal(wrong)
        assert refusal is not None
        assert "No such file" in refusal
        assert shown(tls) == der(new)
        tls.configure(changed)  # the same again: its file is looked at
        newer = CA.issue("node")
        newer.write(tmp_path / "other.pem")
        tls.configure(changed)
        await tls.settled()
        assert shown(tls) == der(newer)

    running(dataclasses.replace(files.security(), reload_interval_ms=0), test)


def test_a_broker_that_would_refuse_its_like_does_not_start(files: Files) -> None:
    files.trust.write_text(Authority("Other").pem)
    with pytest.raises(ConfigError, match="listener SSL: brokers could not connect to each other"):
        NodeTls(files.security(), system_world(), NetworkMetrics())


def test_a_node_without_tls_has_no_thread_and_no_file() -> None:
    security = ClusterConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:9092"}).security

    async def test(tls: NodeTls) -> None:
        assert tls.listener("PLAINTEXT") is None
        assert tls.handshakes is None
        assert tls.days_left() == {}
        tls.configure(security)
        await tls.settled()

    running(security, test)
