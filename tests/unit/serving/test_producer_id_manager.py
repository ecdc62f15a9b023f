"""Blocks of producer ids come from the controller, which may be out of reach."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.requests import ProducerIdBlock
from service.serving import producer_id_manager
from service.serving.producer_id_manager import ProducerIds


class Source:
    """Blocks of two, where nothing is in the way."""

    def __init__(self) -> None:
        self.asked = 0
        self.refuses: ErrorCode | None = None
        self.hangs = False

    async def __call__(self) -> ProducerIdBlock:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses is not None:
            raise RequestError(self.refuses)
        return ProducerIdBlock(10 * self.asked, 2)


def test_a_block_is_asked_for_once_however_many_wait() -> None:
    async def run() -> None:
        source = Source()
        ids = ProducerIds(source)
        assert sorted(await asyncio.gather(*(ids.next() for _ in range(5)))) == [10, 11, 20, 21, 30]
        assert source.asked == 3

    asyncio.run(run())


@pytest.mark.parametrize("refusal", [ErrorCode.request_timed_out, ErrorCode.stale_broker_epoch, None])
def test_init_producer_id_without_a_controller_is_retriable(
    refusal: ErrorCode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients take other errors, or none for half a minute, for their end."""
    monkeypatch.setattr(producer_id_manager, "PATIENCE_S", 0.05)

    async def run() -> None:
        source = Source()
        ids = ProducerIds(source)
        source.refuses, source.hangs = refusal, refusal is None
        found = await asyncio.gather(*(ids.next() for _ in range(3)), return_exceptions=True)
        assert [one.code for one in found if isinstance(one, RequestError)] == [
            ErrorCode.coordinator_load_in_progress
        ] * 3
        source.refuses, source.hangs = None, False
        first, second = await ids.next(), await ids.next()
        assert second == first + 1

    asyncio.run(run())
