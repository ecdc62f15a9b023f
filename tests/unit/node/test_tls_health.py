"""Certificates as `/readyz` tells of them: which end soon, and which stores could not be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from service.health.judge import judge
from service.health.readiness import Check, HealthState, checks_of
from service.network.tls.node_tls import NodeTls
from service.node.health import ObservedParts, facts_of, parts_of
from tests.unit.network.tls.test_node_tls import CA, Files, der, running, shown, until


def told(tls: NodeTls) -> Check:
    parts = ObservedParts(1, 9000, is_broker=False, is_serving=True, tls=tls)
    checks = checks_of(parts_of(parts), judge(facts_of(parts), 0))
    return next(one for one in checks if one.what == "tls")


def look(files: Files, test: Callable[[NodeTls], Awaitable[None]]) -> None:
    running(files.security(), test)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("days", "state", "why"),
    [
        (7.01, HealthState.OK, ""),
        (6.99, HealthState.DEGRADED, "node 1: the certificate of listener SSL ends in 7.0 days"),
        (0.5, HealthState.DEGRADED, "node 1: the certificate of listener SSL ends in 0.5 days"),
    ],
)
def test_a_certificate_that_ends_within_seven_days_is_named(
    files: Files, days: float, state: HealthState, why: str
) -> None:
    files.put(CA.issue("node", days=days))

    async def test(tls: NodeTls) -> None:
        assert told(tls) == Check("tls", state, why)

    look(files, test)


def test_stores_that_could_not_be_loaded_are_named_until_they_can(files: Files) -> None:
    async def test(tls: NodeTls) -> None:
        files.keys.write_text(CA.issue("node").key_pem())
        await until(lambda: told(tls).state is HealthState.DEGRADED)
        assert told(tls).why == (
            f"node 1: listener SSL keeps its old certificates: {files.keys}: no certificate is in it"
        )
        new = CA.issue("node", days=3.2)
        files.put(new)
        await until(lambda: shown(tls) == der(new))
        assert told(tls).why == "node 1: the certificate of listener SSL ends in 3.2 days"

    look(files, test)


def test_a_certificate_that_has_ended_and_a_file_that_is_gone_are_both_named(files: Files) -> None:
    async def test(tls: NodeTls) -> None:
        files.trust.unlink()
        await until(lambda: tls.problems)
        tls._now_s = lambda: CA.issue("node", days=11).certificate.not_valid_after_utc.timestamp()  # type: ignore[method-assign]
        assert told(tls).why == (
            f"node 1: listener SSL keeps its old certificates: ssl.truststore.location: {files.trust}: "
            "No such file or directory; node 1: the certificate of listener SSL has ended"
        )

    look(files, test)
