"""Handlers for brokers and standby controllers: registrations, heartbeats, producer ids (KIP-631).

Each responds as Kafka's ``ControllerApis``: an error of the whole request is in the response's own field.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.controller_registration.v0.response import ControllerRegistrationResponse
from kio.schema.errors import ErrorCode
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from service.base.errors import RequestError
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.requests import (
    ZERO_UUID,
    BrokerHeartbeat,
    Endpoint,
    RegisterBroker,
    RegisterController,
)
from service.metadata.image import FeatureRange
from service.network.request import RequestContext
from service.serving.change_audit import audited
from service.serving.change_words import unregistered_broker
from service.serving.request_host import NO_THROTTLE
from service.wire.heartbeats import BrokerHeartbeatResponse


async def register(side: ControllerSide, context: RequestContext, request: Any) -> BrokerRegistrationResponse:
    """Handle BrokerRegistration: register a new broker process; `broker_epoch` is its epoch from then on."""
    registration = RegisterBroker(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id or ZERO_UUID,
        endpoints=_endpoints(request),
        cluster_id=request.cluster_id,
        rack=request.rack,
        log_dirs=_ids(request.log_dirs),
        features=_features(request),
        previous_epoch=request.previous_broker_epoch,
        is_migrating_zk_broker=request.is_migrating_zk_broker,
    )
    try:
        epoch = await side.controller.brokers.register(registration)
    except RequestError as e:
        if e.code is not ErrorCode.not_controller:
            side.refused_broker(context, f"broker {registration.broker_id}, {e.code.name}: {e}")
        return BrokerRegistrationResponse(throttle_time=NO_THROTTLE, error_code=e.code)
    return BrokerRegistrationResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, broker_epoch=epoch
    )


async def heartbeat(side: ControllerSide, context: RequestContext, request: Any) -> BrokerHeartbeatResponse:
    """Handle BrokerHeartbeat, within half an interval or not at all.

    The connection is remembered: when it breaks, the broker may be dead."""
    connection_id = context.connection_id
    side.heartbeat_received(connection_id)
    try:
        if request.cordoned_log_dirs:
            raise RequestError(ErrorCode.invalid_request, "Cordoned log directories are not known here.")
        reply = await side.controller.brokers.heartbeat(
            BrokerHeartbeat(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                metadata_offset=request.current_metadata_offset,
                wants_fence=request.want_fence,
                wants_shut_down=request.want_shut_down,
                offline_log_dirs=_ids(request.offline_log_dirs),
                cordoned_log_dirs=None if request.cordoned_log_dirs is None else (),
                full_log_dirs=_ids(request.full_log_dirs),
                resting_log_dirs=_ids(request.resting_log_dirs),
            ),
            deadline_ms=side.deadline_ms(side.heartbeat_interval_ms // 2),
        )
    except RequestError as e:
        return BrokerHeartbeatResponse(throttle_time=NO_THROTTLE, error_code=e.code, should_shut_down=False)
    side.heartbeat_decided(connection_id, request.broker_id, request.broker_epoch)
    return BrokerHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
        moves_leaders=True,
    )


@audited(unregistered_broker)
async def unregister(side: ControllerSide, context: RequestContext, request: Any) -> UnregisterBrokerResponse:
    """Handle UnregisterBroker. Without an error the message is empty, not null, as Kafka's."""
    error, message = ErrorCode.none, ""
    try:
        await side.controller.brokers.unregister(request.broker_id)
    except RequestError as e:
        error, message = e.code, str(e)
    return UnregisterBrokerResponse(throttle_time=NO_THROTTLE, error_code=error, error_message=message)


async def allocate_producer_ids(
    side: ControllerSide, context: RequestContext, request: Any
) -> AllocateProducerIdsResponse:
    """Handle AllocateProducerIds: allocate a block to the broker process."""
    try:
        block = await side.controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
    except RequestError as e:
        return AllocateProducerIdsResponse(
            throttle_time=NO_THROTTLE, error_code=e.code, producer_id_start=0, producer_id_len=0
        )
    return AllocateProducerIdsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id_start=block.first,
        producer_id_len=block.size,
    )


async def register_controller(
    side: ControllerSide, context: RequestContext, request: Any
) -> ControllerRegistrationResponse:
    """Handle ControllerRegistration (KIP-919): register a standby."""
    error, message = ErrorCode.none, None
    try:
        if request.zk_migration_ready:
            raise RequestError(ErrorCode.invalid_request, "There is nothing to be migrated from ZooKeeper.")
        await side.controller.register_controller(
            RegisterController(
                node_id=request.controller_id,
                incarnation_id=request.incarnation_id or ZERO_UUID,
                endpoints=_endpoints(request),
                features=_features(request),
            )
        )
    except RequestError as e:
        error, message = e.code, e.message
    return ControllerRegistrationResponse(throttle_time=NO_THROTTLE, error_code=error, error_message=message)


def _endpoints(request: Any) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port, one.security_protocol) for one in request.listeners)


def _features(request: Any) -> tuple[FeatureRange, ...]:
    return tuple(
        FeatureRange(one.name, one.min_supported_version, one.max_supported_version)
        for one in request.features
    )


def _ids(given: tuple[UUID | None, ...] | None) -> tuple[UUID, ...]:
    """Return ids without None: a zero id is read as None, and older versions may have null for no ids."""
    return tuple(one or ZERO_UUID for one in given or ())
