"""An UpdateFeatures of very many features is looked through in slices."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.base import turn_queues
from service.network.request import RequestContext
from service.security.session import anonymous
from service.serving.handlers.update_features import handle
from service.wire.api import ApiKey, request_module

MANY = 20_000


def test_very_many_features_take_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_queues, "SLICE_S", 0)  # each step is a turn
    turns, asked = 0, list[str]()

    async def update_features(updates: Any, *, validate_only: bool) -> None:
        asked.extend(one.name for one in updates)

    async def scenario() -> None:
        nonlocal turns
        module = request_module(ApiKey.UPDATE_FEATURES)
        request = module.UpdateFeaturesRequest(
            timeout=1000,
            validate_only=True,
            feature_updates=tuple(
                module.FeatureUpdateKey(feature=f"f{n}", max_version_level=1, upgrade_type=1)
                for n in range(MANY)
            ),
        )
        host: Any = SimpleNamespace(feature_admin=SimpleNamespace(update_features=update_features))
        context = RequestContext(1, "client", 1, "PLAINTEXT", anonymous("client", "PLAINTEXT"))
        context.api_version = 2
        answer = asyncio.ensure_future(handle(host, context, request))
        while not answer.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await answer).results) == MANY

    asyncio.run(scenario())
    assert asked == [f"f{n}" for n in range(MANY)]
    assert turns >= MANY
