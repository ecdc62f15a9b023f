"""Handshakes under way: bounded, addresses without one first, silent ones give way to newcomers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from service.network.tls.handshakes import Handshakes


class Shaking:
    """A connection, as `Handshakes` uses it."""

    def __init__(self, handshakes: Handshakes, address: str) -> None:
        self.address = address
        self.silent_since_s: float | None = None
        self.has_begun = False
        self.refused = ""
        self._handshakes = handshakes
        handshakes.enter(self)

    def begin(self) -> None:
        assert not self.has_begun
        self.has_begun = True

    def refuse(self, reason: str) -> None:
        self.refused = reason
        self.leave()

    def leave(self) -> None:
        self._handshakes.leave(self)


def on_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_handshakes_beyond_the_bound_wait_and_addresses_without_one_come_first() -> None:
    def test() -> None:
        handshakes = Handshakes(None, 2)
        greedy = [Shaking(handshakes, "greedy") for _ in range(5)]
        other, third = Shaking(handshakes, "other"), Shaking(handshakes, "third")
        assert [one.has_begun for one in greedy] == [True, True, False, False, False]
        assert (handshakes.under_way, handshakes.waiting) == (2, 5)
        greedy[0].leave()
        assert other.has_begun
        assert not third.has_begun
        greedy[1].leave()
        assert third.has_begun
        other.leave()
        assert greedy[2].has_begun
        for one in (*greedy, other, third):
            one.leave()
        assert (handshakes.under_way, handshakes.waiting) == (0, 0)

    on_loop(test)


def test_a_silent_handshake_of_the_greediest_gives_way_to_a_newcomer() -> None:
    def test() -> None:
        handshakes = Handshakes(None, 3)
        greedy = [Shaking(handshakes, "greedy") for _ in range(3)]
        early = Shaking(handshakes, "early")
        assert not early.has_begun, "nobody has been silent for long"
        greedy[1].silent_since_s = asyncio.get_running_loop().time() - 2
        newcomer = Shaking(handshakes, "new")
        assert greedy[1].refused
        assert early.has_begun, "who came first is first"
        assert not newcomer.has_begun
        greedy[0].leave()
        assert newcomer.has_begun
        assert not greedy[2].refused

    on_loop(test)


def test_the_longest_silent_of_as_many_addresses_gives_way_to_a_newcomer() -> None:
    def test() -> None:
        handshakes, now = Handshakes(None, 256), asyncio.get_running_loop().time()
        each = [Shaking(handshakes, f"address {number}") for number in range(256)]
        for number, one in enumerate(each):
            one.silent_since_s = now - 0.5 - (number % 256) / 100
        newcomers = [Shaking(handshakes, f"new {number}") for number in range(3)]
        assert all(one.has_begun for one in newcomers)
        assert [number for number, one in enumerate(each) if one.refused] == [253, 254, 255]

    on_loop(test)


def test_handshakes_keep_their_place_before_the_same_address_and_while_they_go_on() -> None:
    def test() -> None:
        handshakes, now = Handshakes(None, 2), asyncio.get_running_loop().time()
        one, two = Shaking(handshakes, "one"), Shaking(handshakes, "two")
        one.silent_since_s, two.silent_since_s = now - 9, now - 0.5
        assert not Shaking(handshakes, "one").has_begun
        assert not one.refused
        one.silent_since_s = None  # a step is on a thread
        assert not Shaking(handshakes, "three").has_begun
        assert not one.refused
        assert not two.refused

    on_loop(test)


def test_every_connection_has_its_turn_whatever_leaves_when() -> None:
    def test() -> None:
        for seed in range(200):
            chance = random.Random(seed)
            handshakes = Handshakes(None, chance.randint(1, 4))
            alive: list[Shaking] = []
            every: list[Shaking] = []
            for _ in range(60):
                if alive and chance.random() < 0.4:
                    alive.pop(chance.randrange(len(alive))).leave()
                else:
                    alive.append(Shaking(handshakes, chance.choice("abc")))
                    every.append(alive[-1])
                under_way = [one for one in alive if one.has_begun]
                assert handshakes.under_way == len(under_way)
                assert handshakes.waiting == len(alive) - len(under_way)
                assert not (handshakes.waiting and len(under_way) < handshakes._most)
                held = Counter(one.address for one in under_way)
                assert held == handshakes._by_address
            while alive:
                next(one for one in alive if one.has_begun).leave()
                alive = [one for one in alive if one in handshakes._under_way or not one.has_begun]
            assert (handshakes.under_way, handshakes.waiting) == (0, 0)

    on_loop(test)
