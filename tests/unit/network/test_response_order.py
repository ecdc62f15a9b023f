"""The queue of pending responses: order, limit, and what waits behind it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from service.base.errors import InvariantError
from service.network.metrics import ApiMetrics
from service.network.response_order import ResponseOrder

API, OTHER = ApiMetrics(), ApiMetrics()


class Held:
    """A response that is done when the test says so."""

    def __init__(self, name: str, weight: int = 1) -> None:
        self.name, self.weight = name, weight
        self.is_done = self.is_cancelled = False

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> None:
        self.is_cancelled = True


Queue = ResponseOrder[Held, str]


def filled(*weights: int) -> tuple[Queue, list[Held]]:
    queue: Queue = ResponseOrder()
    held = [Held(str(at), weight) for at, weight in enumerate(weights)]
    for at, one in enumerate(held):
        queue.add(one, API, float(at), b"\0\0")
    return queue, held


def names(queue: Queue) -> list[str]:
    return [one.response.name for one in queue.take_done()]


def test_responses_leave_in_the_order_of_requests() -> None:
    queue, (first, second, third) = filled(1, 1, 1)
    third.is_done = second.is_done = True
    assert names(queue) == []
    first.is_done = True
    assert names(queue) == ["0", "1", "2"]
    assert queue.state.name == "EMPTY"


def test_each_response_keeps_its_api_and_time() -> None:
    queue, (one,) = filled(1)
    one.is_done = True
    ((response, api, asked_s),) = queue.take_done()
    assert (response, api, asked_s) == (one, API, 0.0)
    assert api is not OTHER


@pytest.mark.parametrize(
    ("weights", "state"), [([63], "OPEN"), ([64], "FULL"), ([1000], "FULL"), ([32, 31], "OPEN")]
)
def test_the_queue_is_full_at_a_weight_of_64(weights: list[int], state: str) -> None:
    queue, _ = filled(*weights)
    assert queue.state.name == state


def test_a_full_queue_is_open_again_when_a_response_has_left() -> None:
    queue, held = filled(*[1] * 64)
    assert queue.state.name == "FULL"
    held[1].is_done = True
    assert names(queue) == []
    assert queue.state.name == "FULL"
    held[0].is_done = True
    assert names(queue) == ["0", "1"]
    assert queue.state.name == "OPEN"
    queue.add(Held("64"), API, 0.0, b"\0\0")
    assert queue.state.name == "OPEN"
    queue.add(Held("65"), API, 0.0, b"\0\0")
    assert queue.state.name == "FULL"


def test_waiting_responses_come_out_once_when_nothing_is_pending() -> None:
    queue, (one,) = filled(1)
    queue.block("a request of another API")
    assert queue.state.name == "BLOCKED"
    one.is_done = True
    assert names(queue) == ["0"]
    assert queue.state.name == "BLOCKED"
    assert queue.take_behind() == "a request of another API"
    assert queue.state.name == "EMPTY"
    assert queue.take_behind() is None


@pytest.mark.parametrize("weights", [[1], [64]], ids=["open", "full"])
def test_an_error_waits_like_a_response_and_ends_the_queue(weights: list[int]) -> None:
    queue, (one,) = filled(*weights)
    queue.fail("malformed")
    one.is_done = True
    assert names(queue) == ["0"]
    assert queue.take_behind() == "malformed"
    assert queue.state.name == "FAILED"
    with pytest.raises(InvariantError, match="from FAILED to OPEN"):
        queue.add(Held("1"), API, 0.0, b"\0\0")


def test_an_error_replaces_what_waits() -> None:
    queue, _ = filled(1)
    queue.block("a response")
    queue.fail("malformed")
    queue.fail("malformed again")
    assert queue.take_behind() == "malformed again"


def test_a_connection_that_is_gone_cancels_its_responses() -> None:
    queue, held = filled(1, 1)
    held[1].is_done = True
    queue.block("a request")
    queue.close()
    assert all(one.is_cancelled for one in held)
    assert (queue.state.name, queue.pending, queue.take_behind()) == ("CLOSED", [], None)


ILLEGAL: list[tuple[list[int], Callable[[Queue], object], str]] = [
    ([], lambda queue: queue.block("x"), "from EMPTY to BLOCKED"),
    ([], lambda queue: queue.fail("x"), "from EMPTY to FAILED"),
    ([64], lambda queue: queue.block("x"), "from FULL to BLOCKED"),
]


@pytest.mark.parametrize(("weights", "move", "message"), ILLEGAL, ids=[one[2] for one in ILLEGAL])
def test_an_illegal_move_raises(weights: list[int], move: Callable[[Queue], object], message: str) -> None:
    queue, _ = filled(*weights)
    with pytest.raises(InvariantError, match=message):
        move(queue)


def test_no_request_is_added_while_one_waits_behind() -> None:
    queue, _ = filled(1)
    queue.block("x")
    with pytest.raises(InvariantError, match="from BLOCKED to OPEN"):
        queue.add(Held("1"), API, 0.0, b"\0\0")


def test_any_history_keeps_order_and_limit() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    queue: Queue = ResponseOrder()
    waiting: list[Held] = []
    added = taken = 0
    for _ in range(5000):
        if queue.state.name != "FULL" and rng.random() < 0.6:
            one = Held(str(added), rng.choice((1, 1, 2, 10, 70)))
            added += 1
            waiting.append(one)
            queue.add(one, API, 0.0, b"\0\0")
        if waiting and rng.random() < 0.5:
            waiting.pop(rng.randrange(len(waiting))).is_done = True
        for name in names(queue):
            assert name == str(taken), f"seed {seed}"
            taken += 1
        weight = sum(one.response.weight for one in queue.pending)
        expected = "EMPTY" if not queue.pending else "FULL" if weight >= 64 else "OPEN"
        assert queue.state.name == expected, f"seed {seed}"
