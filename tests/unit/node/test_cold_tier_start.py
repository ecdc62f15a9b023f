"""Checks of the store before a node writes: the owner of the prefix, and conditional writes."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from service.base.errors import ConfigError
from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.config.settings import BrokerConfig
from service.node import cold_tier
from service.remote.stores.errors import AccessRefused
from service.remote.stores.memory_store import MemoryStore
from tests.support.processes import PYTHON, REPOSITORY
from tests.support.world import make_world


class Careless(MemoryStore):
    """Writes whatever the condition says, as stores do that have never heard of If-Match."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self.put(key, data)

    def verifies_uploads(self) -> bool:
        return True


class Closed(MemoryStore):
    """Lets nobody replace an object just now, as while keys are being changed."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        raise AccessRefused(f"{key}: these credentials do not permit it (403 AccessDenied)")

    def verifies_uploads(self) -> bool:
        return True


def claim(kind: type[Careless | Closed], **settings: str) -> MemoryStore:
    store = kind(SystemThreads())
    config = BrokerConfig.from_properties({"firn.remote.url": "s3://any/prefix", **settings})

    async def scenario() -> None:
        tier = cold_tier.ColdTier(config, make_world(), "cluster", lambda *_: store)
        try:
            await tier.claim()
        finally:
            await tier.close()

    asyncio.run(scenario())
    return store


def test_a_store_that_ignores_conditions_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"firn\.remote\.unfenced\.allow=true"):
        claim(Careless)


def test_and_used_when_the_operator_says_so() -> None:
    store = claim(Careless, **{"firn.remote.unfenced.allow": "true"})
    assert [info.key for info in store.list("")] == ["cluster.json"]


def test_missing_credentials_count_as_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    claim(Closed)
    assert "the owner of the prefix cannot be read, nothing is copied until it can: " in caplog.text


def test_a_node_without_a_store_does_not_load_the_code_of_one() -> None:
    code = (
        "import sys; import service.cli.server, service.node.node; "
        "rooms = ('obstore', 'service.tiering', 'service.remote.reading', 'service.remote.stores'); "
        "print([name for name in rooms if name in sys.modules])"
    )
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "[]"
