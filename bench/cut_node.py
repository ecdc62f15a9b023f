"""Node of `bench.disasters` with another part in cuts: `python -m bench.cut_node JITTER_MS GATE server FILE`

Runs the command `firn` with patches of this process alone, as the simulator's planted bugs are. A broker
obeys each step of a cut up to JITTER_MS late, as brokers do that are far away. Without its gate
(GATE 0) it notes its ends whenever it is asked for them, and holds nothing back before: such cuts say that
they are exact and are not one moment, and the bucket is good for nothing but to see whether that is found.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from service.base.steps import Steps
from service.cli.main import main
from service.partition.gate import CutGate, Gated
from service.replicas.cut_answers import CutAnswers
from service.wire.cuts import TakeCutRequest, TakeCutResponse


def be_late(most_ms: float) -> None:
    """Have this process obey each step up to so many milliseconds late."""
    answer = CutAnswers.answer

    async def late(answers: CutAnswers, request: TakeCutRequest) -> TakeCutResponse:
        await asyncio.sleep(random.uniform(0, most_ms / 1000))
        return await answer(answers, request)

    _replace(CutAnswers, "answer", late)


def take_the_gate_out() -> None:
    """Have this process hold nothing back."""

    def close(_: CutGate, *__: Any) -> bool:
        return True

    def take(gate: CutGate, _: UUID, __: int, partitions: Iterable[Gated]) -> Steps[None] | None:
        return gate.take_at_once(partitions)

    def open_late(gate: CutGate, _: int, **__: Any) -> Steps[None] | None:
        # an attempt that is void lets metadata through once there is nothing left to open
        return _nothing() if gate.is_open else None

    _replace(CutGate, "close", close)
    _replace(CutGate, "open_late", open_late)
    _replace(CutGate, "take", take)


def _nothing() -> Steps[None]:
    yield from ()


def _replace(owner: type, name: str, by: Any) -> None:
    """Replace what must be there: what cannot be planted would be taken for what is not found."""
    assert name in vars(owner), f"{owner.__name__} has no {name}"
    setattr(owner, name, by)


if __name__ == "__main__":
    jitter_ms, has_gate, *words = sys.argv[1:]
    if float(jitter_ms):
        be_late(float(jitter_ms))
    if has_gate == "0":
        take_the_gate_out()
    sys.exit(main(words))
