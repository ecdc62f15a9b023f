"""BrokerHeartbeat, and the states of a broker: unfenced, fenced, in controlled shutdown. [P]

A heartbeat changes the broker's state to the one that it wants and may have; leaderships move with it. A
broker whose session ends is fenced by `fence_broker`, too. Decisions run in steps, as a broker may have ten
thousand partitions, and may be split into several batches: the broker's own record comes last, or first where
it allows the broker to lead.

Source: Apache Kafka ``ReplicationControlManager`` (``processBrokerHeartbeat``, ``handleBrokerFenced`` and
related methods).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.steps import Steps
from service.metadata.controller.broker_sessions import BrokerControl
from service.metadata.controller.cluster_control import (
    check_epoch,
    leave_isrs,
    nobody_else_heard,
)
from service.metadata.controller.decision import ControllerResult, newest_frames
from service.metadata.controller.directories_control import (
    change_cordoned,
    relieve_directories,
    take_offline,
)
from service.metadata.controller.elections_control import (
    USUAL_ELECTIONS,
    Elections,
    ElectionSettings,
    changes_in_steps,
)
from service.metadata.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply
from service.metadata.frames import Frame
from service.metadata.image import BrokerImage, MetadataImage
from service.metadata.partition_index import NO_LEADER_SHELF
from service.metadata.records import FENCE, UNFENCE, BrokerRegistrationChangeRecord

_IN_CONTROLLED_SHUTDOWN: Final = 1


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
            decision = yield from begin_controlled_shutdown(image, broker_id, epoch, settings=settings)
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


def unfence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, settings: ElectionSettings = USUAL_ELECTIONS
) -> Steps[ControllerResult[None]]:
    """Unfence a broker that has caught up: it leads partitions without a leader that it may lead."""
    broker = check_epoch(image, broker_id, broker_epoch)
    if not broker.fenced:
        return ControllerResult((), None)
    elections = Elections(image, settings, joining=broker_id)
    records = yield from changes_in_steps(elections, image.index.partitions(NO_LEADER_SHELF))
    changes = yield from newest_frames(records)
    return ControllerResult((_change_fencing(broker, UNFENCE), *changes), None, is_atomic=False)


def fence_broker(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    *,
    is_heard: Callable[[int, int], bool] = lambda broker_id, epoch: True,
    settings: ElectionSettings = USUAL_ELECTIONS,
) -> Steps[ControllerResult[None]]:
    """Fence a broker that stops or is lost: in-sync replicas take over its leaderships.

    A broker that this controller never heard stays in an ISR of which it heard no other member, either: they
    may all have died before it was elected, and any of them may be the one that comes back. `is_heard(id,
    epoch)`: that process has sent a heartbeat since then.
    """
    broker = check_epoch(image, broker_id, broker_epoch)
    if broker.fenced:
        return ControllerResult((), None)
    may_stay = Elections(image, settings).is_elr_enabled and not is_heard(broker_id, broker_epoch)
    is_alone = nobody_else_heard(image, broker_id, is_heard)
    left = yield from leave_isrs(image, broker_id, settings, lambda state: may_stay and is_alone(state))
    frames = yield from newest_frames(left)
    return ControllerResult((*frames, _change_fencing(broker, FENCE)), None, is_atomic=False)


def begin_controlled_shutdown(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, settings: ElectionSettings = USUAL_ELECTIONS
) -> Steps[ControllerResult[None]]:
    """Begin a controlled shutdown: leaderships move to in-sync replicas while the broker still serves."""
    broker = check_epoch(image, broker_id, broker_epoch)
    frames = yield from newest_frames((yield from leave_isrs(image, broker_id, settings)))
    if not broker.in_controlled_shutdown:
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN
        )
        frames.insert(0, Frame(change, 1))
    return ControllerResult(tuple(frames), None, is_atomic=False)


def _change_fencing(broker: BrokerImage, fenced: int) -> Frame:
    """Return the change in version 0: Kafka's controller uses the oldest version that holds a change."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced)
    return Frame(change, 0)
