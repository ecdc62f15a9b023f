"""A broker's membership with a controller that decides as Kafka's, and what is said on the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.node_channel import ChannelOptions, Channels
from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import (
    Exit,
    Failed,
    Heartbeat,
    MoveAway,
    Recover,
    Serve,
    State,
    Timing,
)
from service.controller_client.broker_lifecycle_manager import Membership
from service.controller_client.controller_channel import Active, Controllers
from service.controller_client.lifecycle_messages import Feature, Identity
from service.metadata.controller.requests import Endpoint, ProducerIdBlock
from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    encode_request,
    response_frame,
    response_module,
)
from service.wire.api import parse_request_header as head_of
from tests.support.peers import peer, sound
from tests.support.virtual_loop import run_virtually
from tests.support.waiting import until

IDENTITY = Identity(
    node_id=4,
    incarnation_id=UUID(int=44),
    cluster_id="c",
    endpoints=(Endpoint("PLAINTEXT", "h", 9092),),
    features=(Feature("metadata.version", 7, 30),),
    rack="r",
    log_dirs=(UUID(int=1 << 127), UUID(int=5)),
    previous_epoch=12,
)
TIMING = Timing(
    heartbeat_interval_ms=200,
    answer_timeout_ms=450,
    registration_timeout_ms=3_000,
    shutdown_timeout_ms=1_000,
)


class Controller:
    """Registers, unfences who has caught up, and lets go of who has nothing left."""

    def __init__(self) -> None:
        self.epoch = 100
        self.incarnation: UUID | None = None
        self.leads = 2
        """heartbeats until its leaderships have moved"""
        self.heard: list[Any] = []
        self.errors: list[ErrorCode | Exception] = []

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms == TIMING.answer_timeout_ms
        # As on the wire, so that nothing is said that it does not carry.
        frame = encode_request(api_key, {62: 4, 63: 2}[api_key], 1, "b", message)[4:]
        message = decode_request(head_of(frame), frame)
        await asyncio.sleep(0.001)
        self.heard.append(message)
        error = self.errors.pop(0) if self.errors else ErrorCode.none
        if isinstance(error, Exception):
            raise error
        if api_key == ApiKey.BROKER_REGISTRATION:
            return self._register(message, error)
        return self._heartbeat(message, error)

    def _register(self, message: Any, error: ErrorCode) -> Any:
        if error is ErrorCode.none and message.incarnation_id != self.incarnation:
            self.incarnation = message.incarnation_id
            self.epoch += 10
        return response_module(ApiKey.BROKER_REGISTRATION).BrokerRegistrationResponse(
            throttle_time=0, error_code=error, broker_epoch=-1 if error else self.epoch
        )

    def _heartbeat(self, message: Any, error: ErrorCode) -> Any:
        if message.broker_epoch != self.epoch:
            error = ErrorCode.stale_broker_epoch
        self.leads -= message.want_shut_down
        caught_up = message.current_metadata_offset >= self.epoch
        return response_module(ApiKey.BROKER_HEARTBEAT).BrokerHeartbeatResponse(
            throttle_time=0,
            error_code=error,
            is_caught_up=caught_up,
            is_fenced=message.want_fence or not caught_up,
            should_shut_down=self.leads <= 0,
        )


class Node:
    def __init__(self, controller: Any, timing: Timing = TIMING) -> None:
        self.told: list[Any] = []
        self.membership = Membership(IDENTITY, controller, self.told.append, timing)

    async def serves(self) -> None:
        self.membership.start()
        await until(lambda: self.membership.epoch > 0)
        self.membership.published(self.membership.epoch)
        await until(lambda: Recover() in self.told)
        self.membership.logs_ready()
        await until(lambda: Serve() in self.told)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtually(scenario)


def test_a_broker_registers_serves_and_shuts_down_in_order() -> None:
    async def scenario() -> None:
        controller = Controller()
        node = Node(controller)
        await node.serves()
        first = controller.heard[0]
        assert (first.broker_id, first.incarnation_id, first.previous_broker_epoch) == (4, UUID(int=44), 12)
        assert first.log_dirs == (UUID(int=1 << 127), UUID(int=5))  # signed, as Java compares them
        assert (first.listeners[0].host, first.features[0].max_supported_version) == ("h", 30)
        heard = len(controller.heard)
        await asyncio.sleep(1.05)
        assert 4 <= len(controller.heard) - heard <= 6  # one per interval
        assert not node.membership.is_fenced
        node.membership.terminate()
        await until(lambda: len(node.told) == 4)
        assert [type(one) for one in node.told] == [Recover, Serve, MoveAway, Exit]
        assert not node.told[-1].is_failure
        assert node.membership.state is State.GONE
        heard = len(controller.heard)
        await asyncio.sleep(5)
        assert len(controller.heard) == heard
        await node.membership.close()

    run(scenario())


def test_failures_on_the_way_are_told_and_overcome(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        controller = Controller()
        controller.errors = [
            RequestError(ErrorCode.request_timed_out, "no controller"),
            ErrorCode.duplicate_broker_registration,
            ErrorCode.none,
            ErrorCode.unknown_server_error,
            RequestError(ErrorCode.request_timed_out, "no controller"),
        ]
        node = Node(controller)
        await node.serves()
        await node.membership.close()

    with caplog.at_level(logging.INFO):
        run(scenario())
    text = caplog.text
    assert "registration failed: no controller" in text
    assert "refuses the registration: duplicate_broker_registration" in text
    assert "refuses the heartbeat: unknown_server_error" in text
    assert "broker 4 is registered with epoch 110" in text


def test_a_replaced_broker_registers_again_with_the_same_incarnation() -> None:
    async def scenario() -> None:
        controller = Controller()
        node = Node(controller)
        await node.serves()
        controller.incarnation, controller.epoch = UUID(int=9), 500
        await until(lambda: node.membership.epoch == 510)
        node.membership.published(510)
        await until(lambda: not node.membership.is_fenced)
        assert [one for one in node.told if isinstance(one, Serve)] == [Serve()]
        await node.membership.close()

    run(scenario())


def test_a_broker_that_is_never_registered_fails() -> None:
    async def scenario() -> None:
        controller = Controller()
        controller.errors = [ErrorCode.inconsistent_cluster_id] * 1000
        node = Node(controller)
        began = asyncio.get_running_loop().time()
        node.membership.start()
        await until(lambda: node.told)
        assert node.told[0].is_failure
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.1)
        await node.membership.close()

    run(scenario())


def test_a_failed_directory_is_told() -> None:
    async def scenario() -> None:
        controller = Controller()
        node = Node(controller)
        await node.serves()
        node.membership.directory_failed(UUID(int=5))
        await until(lambda: controller.heard[-1].offline_log_dirs == (UUID(int=5),))
        await node.membership.close()

    run(scenario())


def test_a_bug_in_the_shell_ends_the_broker_and_does_not_silence_it() -> None:
    async def scenario() -> None:
        class Broken:
            async def ask(self, *_: Any, **__: Any) -> Any:
                raise ZeroDivisionError

        node = Node(Broken())
        node.membership.start()
        await until(lambda: node.told)
        assert node.told[0].is_failure
        await node.membership.close()

    run(scenario())


def test_over_a_channel_to_a_controllers_listener() -> None:
    async def scenario() -> None:
        controller = Controller()

        def behave(header: RequestHeader, request: Any) -> bytes | None:
            if header.api_key == ApiKey.BROKER_REGISTRATION:
                return bytes(response_frame(header, controller._register(request, ErrorCode.none)))
            if header.api_key == ApiKey.BROKER_HEARTBEAT:
                return bytes(response_frame(header, controller._heartbeat(request, ErrorCode.none)))
            return sound(header, request)

        async with peer(behave) as other:

            class Leaders:
                def active(self) -> Active | None:
                    return Active(1, 1, other.address)

            channels = Channels(ChannelOptions())
            node = Node(Controllers(4, Leaders(), channels), Timing())
            async with asyncio.timeout(10):
                await node.serves()
                node.membership.terminate()
                await until(lambda: len(node.told) == 4)
            assert other.accepted == 1
            await node.membership.close()
            await channels.close()

    asyncio.run(scenario())


def test_a_controller_that_takes_its_time_is_not_asked_on_another_connection() -> None:
    """As one of many brokers' that is slow for all of them."""

    async def scenario() -> None:
        controller, under_way = Controller(), 0

        async def ask(api_key: int, message: Any, *, timeout_ms: int) -> Any:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.sleep(0.4)  # two intervals
            under_way -= 1
            return await Controller.ask(controller, api_key, message, timeout_ms=timeout_ms)

        controller.ask = ask  # type: ignore[method-assign]
        node = Node(controller)
        await node.serves()
        await asyncio.sleep(5)
        assert not node.membership.is_fenced
        await node.membership.close()

    run(scenario())


# -- messages


def test_errors_are_events_and_unknown_ones_have_a_name() -> None:
    module = response_module(ApiKey.BROKER_REGISTRATION)
    answer = module.BrokerRegistrationResponse(throttle_time=0, error_code=12345)
    assert lifecycle_messages.registered(answer) == Failed(ErrorCode.unknown_server_error)


def test_heartbeats_say_what_the_machine_says() -> None:
    message = lifecycle_messages.heartbeat(4, Heartbeat(7, 9, True, False, (UUID(int=1),)))
    assert (message.broker_id, message.broker_epoch, message.current_metadata_offset) == (4, 7, 9)
    assert (message.want_fence, message.want_shut_down) == (True, False)
    assert message.offline_log_dirs == (UUID(int=1),)
    assert message.cordoned_log_dirs is None
    message = lifecycle_messages.heartbeat(4, Heartbeat(7, 9, False, False, cordoned_directories=()))
    assert message.cordoned_log_dirs == ()


def test_producer_ids_come_as_a_block_or_not_at_all() -> None:
    assert lifecycle_messages.producer_ids(4, 7).broker_epoch == 7
    module = response_module(ApiKey.ALLOCATE_PRODUCER_IDS)

    def answer(code: int, first: int, size: int) -> Any:
        return module.AllocateProducerIdsResponse(
            throttle_time=0, error_code=code, producer_id_start=first, producer_id_len=size
        )

    assert lifecycle_messages.producer_ids_allocated(answer(0, 3000, 1000)) == ProducerIdBlock(3000, 1000)
    for bad in (answer(ErrorCode.stale_broker_epoch, -1, 0), answer(0, -1, 5), answer(0, 5, 0)):
        with pytest.raises(RequestError):
            lifecycle_messages.producer_ids_allocated(bad)


def test_controllers_register_too() -> None:
    message = lifecycle_messages.controller_registration(
        3, UUID(int=9), (Endpoint("CONTROLLER", "h", 9093),), IDENTITY.features
    )
    frame = encode_request(ApiKey.CONTROLLER_REGISTRATION, 0, 1, "b", message)[4:]
    assert decode_request(head_of(frame), frame) == message
    module = response_module(ApiKey.CONTROLLER_REGISTRATION)
    answer = module.ControllerRegistrationResponse(throttle_time=0, error_code=0, error_message=None)
    lifecycle_messages.controller_registered(answer)
    refused = module.ControllerRegistrationResponse(
        throttle_time=0, error_code=ErrorCode.unsupported_version, error_message="too new"
    )
    with pytest.raises(RequestError, match="too new"):
        lifecycle_messages.controller_registered(refused)
