"""Questions of a node to its own coordinator of transactions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.serving import transaction_verifier
from service.serving.transaction_verifier import TransactionVerifier
from service.transactions.verification import Mode

STATES = "__transaction_state"


def image() -> Any:
    led_here = SimpleNamespace(leader=1, has_leader=True)
    return SimpleNamespace(topics_by_name={STATES: SimpleNamespace(partitions={0: led_here})})


def test_an_answer_that_does_not_come_is_waited_for_as_long_as_that_of_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decision waits for its replicas as long as its transaction may last; a Produce does not."""
    monkeypatch.setattr(transaction_verifier, "OWN_ANSWER_S", 0.01)
    tip = TopicIdPartition(UUID(int=1), "t", 0)

    async def ask() -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def own(_: object) -> Any:
            return await answer

        brokers: Any = SimpleNamespace()
        verifier = TransactionVerifier(1, image, STATES, brokers, own, ManualClock(0))
        errors = await asyncio.wait_for(verifier.verify("pay", 7, 0, (tip,), Mode.ADD), 20)
        return errors, answer.done()

    assert asyncio.run(ask()) == ({tip: ErrorCode.network_exception}, True)
