"""A newcomer gets a place among the handshakes a second after the greediest fell silent, not at their end."""

from __future__ import annotations

import asyncio

from service.network.tls.handshakes import Handshakes
from tests.unit.network.tls.test_handshakes import Shaking


def test_a_newcomer_who_finds_nobody_silent_for_a_second_waits_no_longer_than_that() -> None:
    async def run() -> None:
        handshakes = Handshakes(None, 3)
        greedy = [Shaking(handshakes, "greedy") for _ in range(3)]
        for one in greedy:
            one.silent_since_s = asyncio.get_running_loop().time()
        newcomer = Shaking(handshakes, "new")
        await asyncio.sleep(1.5)
        assert newcomer.has_begun

    asyncio.run(run())
