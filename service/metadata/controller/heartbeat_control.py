"""BrokerHeartbeat: changes the broker's state to the one that it wants and may have. [P]

Source: Apache Kafka ``ReplicationControlManager.processBrokerHeartbeat``.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.steps import Steps
from service.metadata.controller.broker_sessions import BrokerControl
from service.metadata.controller.cluster_control import (
    change_cordoned,
    check_epoch,
    fence_broker,
    move_away,
    relieve_directories,
    take_offline,
    unfence_broker,
)
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply
from service.metadata.image import MetadataImage


class HeartbeatOutcome(NamedTuple):
    """Response, and the broker's states before and after."""

    reply: BrokerHeartbeatReply
    current: BrokerControl
    next: BrokerControl


def process_heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeat,
    current: BrokerControl,
    following: BrokerControl,
    settings: ElectionSettings,
) -> Steps[ControllerResult[HeartbeatOutcome]]:
    """Apply the state of `BrokerSessions.next_state`, and handle failed and full directories.

    Raises `RequestError`: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    broker_id, epoch = request.broker_id, request.broker_epoch
    broker = check_epoch(image, broker_id, epoch)
    decision: ControllerResult[None] = ControllerResult((), None)
    if following is not current:
        if following is BrokerControl.UNFENCED:
            decision = yield from unfence_broker(image, broker_id, epoch, settings=settings)
        elif following is BrokerControl.CONTROLLED_SHUTDOWN:
            decision = yield from move_away(image, broker_id, epoch, settings=settings)
        else:
            decision = yield from fence_broker(image, broker_id, epoch, settings=settings)
    frames = decision.frames
    if not frames and request.offline_log_dirs:
        # A change of state is decided alone; the next heartbeat reports the directories again.
        offline = yield from take_offline(image, broker_id, request.offline_log_dirs, settings=settings)
        frames = offline.frames
    if not frames and (request.full_log_dirs or request.resting_log_dirs):
        relieved = yield from relieve_directories(
            image, broker_id, request.full_log_dirs, request.resting_log_dirs, settings=settings
        )
        frames = relieved.frames
    if request.cordoned_log_dirs is not None:
        frames += change_cordoned(broker, request.cordoned_log_dirs)
    reply = BrokerHeartbeatReply(
        is_caught_up=request.metadata_offset >= broker.epoch,
        is_fenced=following in (BrokerControl.FENCED, BrokerControl.SHUTDOWN_NOW),
        should_shut_down=following is BrokerControl.SHUTDOWN_NOW,
    )
    return ControllerResult(frames, HeartbeatOutcome(reply, current, following), is_atomic=False)
