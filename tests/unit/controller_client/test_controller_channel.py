"""The queue to the controller: here or elsewhere, found again when it moves, and what is sent again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.node_channel import ChannelOptions, Channels
from service.controller_client.controller_channel import (
    Active,
    Controllers,
    OutcomeUnknown,
    is_not_controller,
)
from service.wire.api import ApiKey, RequestHeader, request_module, response_frame, response_module
from service.wire.errors import UnsupportedVersion
from tests.support.peers import Address, peer, sound
from tests.support.virtual_loop import run_virtually
from tests.support.waiting import until

KEY = ApiKey.CREATE_PARTITIONS
"""Not safe to be asked for again"""
SAFE_KEY = ApiKey.ALLOCATE_PRODUCER_IDS
NOT_CONTROLLER = response_module(SAFE_KEY).AllocateProducerIdsResponse(
    throttle_time=0, error_code=ErrorCode.not_controller, producer_id_start=-1, producer_id_len=0
)


def at(node_id: int, epoch: int = 1) -> Active:
    return Active(node_id, epoch, Address(f"n{node_id}", 9093))


class Quorum:
    def __init__(self, active: Active | None = None) -> None:
        self.now = active

    def active(self) -> Active | None:
        return self.now


Answer = Any | Exception | Callable[[], Awaitable[Any]]


class Nodes:
    """Answers of other nodes, by host, in order; the last one is repeated."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def call(
        self, endpoint: Any, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        self.asked.append((endpoint.host, message))
        answers = self.answers[endpoint.host]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        await asyncio.sleep(0.001)
        if isinstance(answer, Exception):
            raise answer
        return await answer() if callable(answer) else answer


def queue(quorum: Quorum, nodes: Nodes, here: Any = None) -> Controllers:
    return Controllers(1, quorum, nodes, here, retry_ms=50)


def lost() -> Exception:
    return ConnectionResetError("lost")


def never_sent() -> Exception:
    error = TimeoutError("no connection")
    error.__dict__["was_sent"] = False
    return error


def test_the_controller_is_asked_here_or_where_it_is() -> None:
    async def scenario() -> None:
        async def here(api_key: int, message: Any) -> Any:
            return ("here", api_key, message)

        quorum, nodes = Quorum(at(1)), Nodes(n2=["there"])
        controllers = queue(quorum, nodes, here)
        assert await controllers.ask(KEY, "a", timeout_ms=1000) == ("here", KEY, "a")
        quorum.now = at(2, 2)
        assert await controllers.ask(KEY, "b", timeout_ms=1000) == "there"
        assert nodes.asked == [("n2", "b")]

    run_virtually(scenario())


def test_a_not_controller_error_moves_to_the_next_controller() -> None:
    async def scenario() -> None:
        quorum = Quorum(at(2))

        async def moved() -> Any:
            quorum.now = at(3, 2)
            return NOT_CONTROLLER

        nodes = Nodes(n2=[moved], n3=["done"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await queue(quorum, nodes).ask(KEY, "a", timeout_ms=1000) == "done"
        assert [host for host, _ in nodes.asked] == ["n2", "n3"]
        assert loop.time() - began < 0.01  # its successor is known: nothing is waited for

    run_virtually(scenario())


def test_the_same_controller_is_asked_again_after_a_pause() -> None:
    async def scenario() -> None:
        nodes = Nodes(n2=[NOT_CONTROLLER, ConnectionRefusedError(), NOT_CONTROLLER, "done"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await queue(Quorum(at(2)), nodes).ask(KEY, "a", timeout_ms=1000) == "done"
        assert 0.15 <= loop.time() - began < 0.2

    run_virtually(scenario())


def test_a_request_waits_for_a_leader_and_goes_as_soon_as_there_is_one() -> None:
    async def scenario() -> None:
        quorum, nodes = Quorum(), Nodes(n2=["done"])
        controllers = Controllers(1, quorum, nodes, retry_ms=10_000)
        asking = asyncio.create_task(controllers.ask(KEY, "a", timeout_ms=60_000))
        await asyncio.sleep(0.5)
        quorum.now = at(2)
        controllers.leader_changed()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await asking == "done"
        assert loop.time() - began < 0.01

    run_virtually(scenario())


def test_without_a_controller_a_request_ends_at_its_own_deadline() -> None:
    async def scenario() -> None:
        controllers = queue(Quorum(), Nodes())
        loop = asyncio.get_running_loop()
        began = loop.time()
        slow = asyncio.create_task(controllers.ask(KEY, "slow", timeout_ms=5_000))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await controllers.ask(KEY, "quick", timeout_ms=700)  # though it stands behind the other one
        assert caught.value.code is ErrorCode.request_timed_out
        assert not isinstance(caught.value, OutcomeUnknown)
        assert loop.time() - began == pytest.approx(0.7, abs=0.02)
        with pytest.raises(RequestError):
            await slow
        assert loop.time() - began == pytest.approx(5, abs=0.02)

    run_virtually(scenario())


def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe() -> None:
    async def scenario() -> None:
        nodes = Nodes(n2=[lost(), "done"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await queue(Quorum(at(2)), nodes).ask(SAFE_KEY, "a", timeout_ms=1000) == "done"
        assert loop.time() - began < 0.01, "a broker whose connection broke is to be heard at once"
        assert nodes.asked == [("n2", "a"), ("n2", "a")]
        nodes = Nodes(n2=[lost(), "done"])
        with pytest.raises(OutcomeUnknown, match="lost") as caught:
            await queue(Quorum(at(2)), nodes).ask(KEY, "a", timeout_ms=1000)
        assert caught.value.code is ErrorCode.request_timed_out
        assert len(nodes.asked) == 1

    run_virtually(scenario())


@pytest.mark.parametrize("error", [ConnectionRefusedError(), never_sent()])
def test_a_request_that_was_not_sent_is_always_retried(error: Exception) -> None:
    async def scenario() -> None:
        nodes = Nodes(n2=[error, "done"])
        assert await queue(Quorum(at(2)), nodes).ask(KEY, "a", timeout_ms=1000) == "done"

    run_virtually(scenario())


def test_no_answer_by_the_deadline_is_an_unknown_outcome() -> None:
    async def scenario() -> None:
        async def never() -> Any:
            await asyncio.sleep(1000)

        controllers = queue(Quorum(at(2)), Nodes(n2=[never]))
        with pytest.raises(OutcomeUnknown):
            await controllers.ask(KEY, "a", timeout_ms=100)
        with pytest.raises(RequestError) as caught:
            await controllers.ask(SAFE_KEY, "a", timeout_ms=100)
        assert not isinstance(caught.value, OutcomeUnknown)

    run_virtually(scenario())


def test_idempotent_requests_move_to_the_next_controller_on_silence() -> None:
    async def scenario() -> None:
        async def sleeps() -> Any:
            await asyncio.sleep(20)
            return "late"

        loop, quorum = asyncio.get_running_loop(), Quorum(at(2))
        controllers = queue(quorum, Nodes(n2=[sleeps], n3=["done"]))
        asking = asyncio.create_task(controllers.ask(SAFE_KEY, "a", timeout_ms=30_000))
        await asyncio.sleep(1)
        quorum.now = None  # nobody leads: the answer may still come
        await asyncio.sleep(1)
        quorum.now, elected = at(3, 2), loop.time()
        assert await asking == "done"
        assert loop.time() - elected < 0.2

        quorum.now = at(2, 3)
        asking = asyncio.create_task(controllers.ask(KEY, "b", timeout_ms=30_000))
        await asyncio.sleep(1)
        quorum.now = at(3, 4)
        assert await asking == "late"  # it may be done already: nobody else is asked

        quorum.now = at(2, 5)
        asking = asyncio.create_task(controllers.ask(SAFE_KEY, "c", timeout_ms=30_000))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.wait({asking})
        assert len(asyncio.all_tasks()) == 1  # nothing goes on for who was sent away

    run_virtually(scenario())


def test_a_caller_that_times_out_with_its_call_leaves_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async def silent() -> Any:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:  # as `asyncio.timeout` does it
                raise TimeoutError from None

        controllers = queue(Quorum(at(2)), Nodes(n2=[silent]))
        with pytest.raises(RequestError, match="no controller has answered"):
            await controllers.ask(SAFE_KEY, "a", timeout_ms=120)

    run_virtually(scenario())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_requests_go_in_the_order_in_which_they_came_one_at_a_time() -> None:
    async def scenario() -> None:
        under_way = 0

        async def one() -> Any:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(0.01)
            under_way -= 1
            return "done"

        nodes = Nodes(n2=[one])
        controllers = queue(Quorum(at(2)), nodes)
        await asyncio.gather(*(controllers.ask(KEY, number, timeout_ms=5000) for number in range(20)))
        assert [message for _, message in nodes.asked] == list(range(20))

    run_virtually(scenario())


def test_a_node_that_leads_and_does_not_decide_yet_is_asked_again() -> None:
    async def scenario() -> None:
        tries = 0

        async def here(api_key: int, message: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise RequestError(ErrorCode.not_controller)
            if message == "bad":
                raise RequestError(ErrorCode.invalid_request, "no")
            return "done"

        controllers = queue(Quorum(at(1)), Nodes(), here)
        assert await controllers.ask(KEY, "a", timeout_ms=1000) == "done"
        with pytest.raises(RequestError, match="no"):
            await controllers.ask(KEY, "bad", timeout_ms=1000)
        without = queue(Quorum(at(1)), Nodes())  # the quorum's view is ahead of this node's own
        with pytest.raises(RequestError, match="no controller"):
            await without.ask(KEY, "a", timeout_ms=200)

    run_virtually(scenario())


def test_an_unsupported_version_is_the_askers_to_know() -> None:
    async def scenario() -> None:
        controllers = queue(Quorum(at(2)), Nodes(n2=[UnsupportedVersion("old")]))
        with pytest.raises(UnsupportedVersion):
            await controllers.ask(KEY, "a", timeout_ms=1000)

    run_virtually(scenario())


def test_not_controller_is_seen_wherever_it_stands() -> None:
    module = response_module(ApiKey.DELETE_TOPICS)
    one = module.DeletableTopicResult(name="t", topic_id=None, error_code=ErrorCode.not_controller)
    assert is_not_controller(module.DeleteTopicsResponse(throttle_time=0, responses=(one,)))
    assert not is_not_controller(module.DeleteTopicsResponse(throttle_time=0, responses=()))
    assert is_not_controller(NOT_CONTROLLER)


def test_over_real_channels_a_killed_controller_is_replaced() -> None:
    async def scenario() -> None:
        refusals = []

        def moved(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == SAFE_KEY and request.broker_epoch == 2:
                refusals.append(request)
                return bytes(response_frame(header, NOT_CONTROLLER))
            return sound(header, request)

        async with peer(moved) as old, peer() as new:
            quorum = Quorum(Active(2, 1, old.address))
            channels = Channels(ChannelOptions(backoff_ms=5, backoff_max_ms=20))
            controllers = Controllers(1, quorum, channels, retry_ms=10)

            async def ask(number: int) -> int:
                message = request_module(SAFE_KEY).AllocateProducerIdsRequest(
                    broker_id=1, broker_epoch=number
                )
                answer = await controllers.ask(SAFE_KEY, message, timeout_ms=5_000)
                first: int = answer.producer_id_start
                return first

            assert await ask(1) == 1
            asking = asyncio.create_task(ask(2))
            await until(lambda: len(refusals) > 1)
            quorum.now = Active(3, 2, new.address)
            assert await asking == 2
            await new.stop()
            asking = asyncio.create_task(ask(3))
            await until(lambda: channels.metrics.refused > 2)  # never sent
            quorum.now = Active(2, 3, old.address)
            assert await asking == 3
            await channels.close()

    asyncio.run(scenario())
