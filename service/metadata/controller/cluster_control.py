"""Brokers and controllers that come and go. [P]

Source: Apache Kafka ``ClusterControlManager``, ``ReplicationControlManager`` (``handleBrokerFenced`` and
those beside it). Whatever it costs is steps, as a broker may have ten thousand partitions; a decision of many
records may be cut into several batches, so that the record that others go by stands last, or first where it
makes brokers able to lead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.decision import NEWEST_US, Decision
from service.metadata.controller.elections_control import (
    CHANGE_US,
    LOOK_US,
    Elections,
    ElectionSettings,
    changes_in_steps,
    looked_up,
)
from service.metadata.controller.requests import RegisterBroker, RegisterController
from service.metadata.features import supported_features
from service.metadata.frames import Frame, newest
from service.metadata.image import (
    KRAFT_VERSION,
    METADATA_VERSION,
    BrokerImage,
    FeatureRange,
    MetadataImage,
    PartitionImage,
)
from service.metadata.partition_index import NO_LEADER_SHELF, has_member, lies_in
from service.metadata.records import (
    FENCE,
    UNFENCE,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

_RESERVED_DIRECTORY_IDS: Final = 100
"""Directory ids below this number mean something else (Kafka ``DirectoryId``: unassigned, lost …)."""
_IN_CONTROLLED_SHUTDOWN: Final = 1
_USUAL: Final = ElectionSettings()


def register_broker(
    image: MetadataImage,
    request: RegisterBroker,
    *,
    cluster_id: str,
    next_offset: int,
    has_session: bool,
    is_heard: Callable[[int, int], bool] = lambda broker_id, epoch: True,
    settings: ElectionSettings = _USUAL,
) -> Steps[Decision[int]]:
    """Register a broker process; the answer is its epoch. It starts fenced and leads nothing.

    `has_session`: a process with this id is known to be alive. `is_heard`: a heartbeat of the process with
    that id and epoch has come. `next_offset`: where the records will go.
    A process that follows one which was not stopped cleanly takes it out of every ISR and, with eligible
    leader replicas, out of those too. Raises `RequestError`: INCONSISTENT_CLUSTER_ID,
    DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION, UNSUPPORTED_VERSION, BROKER_ID_NOT_REGISTERED.
    """
    existing = image.brokers.get(request.broker_id)
    features = supported_features() if request.features is None else request.features
    _check_registration(image, request, cluster_id, existing, has_session)
    _check_features(image, features)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        again = _registration(request, features, existing.epoch, existing)
        return Decision((newest(again),), existing.epoch)
    records = yield from _shutdown(image, request, existing, is_heard, settings)
    frames = yield from _newest(records)
    epoch = next_offset + len(frames)
    frames.append(newest(_registration(request, features, epoch, None)))
    return Decision(tuple(frames), epoch, is_atomic=False)


def _shutdown(
    image: MetadataImage,
    request: RegisterBroker,
    existing: BrokerImage | None,
    is_heard: Callable[[int, int], bool],
    settings: ElectionSettings,
) -> Steps[list[PartitionChangeRecord]]:
    """What ends with the process that had this id before.

    One that has all it acknowledged stays in an ISR of which no other member was heard: they may all have
    died at once. If it left, only those that are left could lead, and they may never come back.
    Nothing is committed without it, so it costs whoever lives there the moments until it has caught up.
    """
    broker_id = request.broker_id
    is_clean = existing is not None and existing.epoch == request.previous_epoch
    elections = Elections(image, settings)
    if elections.is_elr_enabled and not is_clean:
        elections = Elections(image, settings, unclean=broker_id)
        return (yield from changes_in_steps(elections, image.index.partitions(has_member(broker_id))))
    if existing is None or existing.fenced:
        return []  # leads nothing, and is in an ISR only as its last member

    def is_alone(state: PartitionImage) -> bool:
        others = [image.brokers[one] for one in state.isr if one != broker_id and one in image.brokers]
        return bool(others) and not any(is_heard(one.id, one.epoch) for one in others)

    partitions = list(image.index.partitions(has_member(broker_id)))
    gone = yield from changes_in_steps(
        Elections(image, settings, without=broker_id),
        partitions,
        lambda state: broker_id in state.isr and not (is_clean and is_alone(state)),
    )
    awaited = yield from changes_in_steps(
        Elections(image, settings, awaited=broker_id),
        partitions,
        lambda state: broker_id in state.isr and is_clean and is_alone(state),
    )
    return gone + awaited


def _leave_isrs(
    image: MetadataImage, broker_id: int, settings: ElectionSettings
) -> Steps[list[PartitionChangeRecord]]:
    return (
        yield from changes_in_steps(
            Elections(image, settings, without=broker_id),
            image.index.partitions(has_member(broker_id)),
            lambda state: broker_id in state.isr,
        )
    )


def unfence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, settings: ElectionSettings = _USUAL
) -> Steps[Decision[None]]:
    """The broker has caught up: it leads again what has no leader and it may lead."""
    broker = check_epoch(image, broker_id, broker_epoch)
    if not broker.fenced:
        return Decision((), None)
    elections = Elections(image, settings, joining=broker_id)
    records = yield from changes_in_steps(elections, image.index.partitions(NO_LEADER_SHELF))
    changes = yield from _newest(records)
    return Decision((_change_fencing(broker, UNFENCE), *changes), None, is_atomic=False)


def fence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, settings: ElectionSettings = _USUAL
) -> Steps[Decision[None]]:
    """The broker stops or is lost: others lead what it led, where there are any in sync."""
    broker = check_epoch(image, broker_id, broker_epoch)
    if broker.fenced:
        return Decision((), None)
    frames = yield from _newest((yield from _leave_isrs(image, broker_id, settings)))
    return Decision((*frames, _change_fencing(broker, FENCE)), None, is_atomic=False)


def move_away(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, settings: ElectionSettings = _USUAL
) -> Steps[Decision[None]]:
    """The broker is about to stop: its leaderships move while it still serves (controlled shutdown)."""
    broker = check_epoch(image, broker_id, broker_epoch)
    frames = yield from _newest((yield from _leave_isrs(image, broker_id, settings)))
    if not broker.in_controlled_shutdown:
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN
        )
        frames.insert(0, Frame(change, 1))
    return Decision(tuple(frames), None, is_atomic=False)


def take_offline(
    image: MetadataImage,
    broker_id: int,
    directories: Collection[UUID],
    *,
    settings: ElectionSettings = _USUAL,
) -> Steps[Decision[None]]:
    """Directories of the broker's failed: what lies there is led by others, and not in sync any more."""
    broker = image.brokers[broker_id]
    gone = [directory for directory in broker.log_dirs if directory in directories]
    if not gone:
        return Decision((), None)
    elections = Elections(image, settings, without=broker_id)
    frames: list[Frame] = []
    for directory in gone:
        partitions = image.index.partitions(lies_in(directory))
        frames += yield from _newest((yield from changes_in_steps(elections, partitions)))
    left = tuple(directory for directory in broker.log_dirs if directory not in gone)
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, log_dirs=left)
    return Decision((*frames, Frame(change, 2)), None, is_atomic=False)


def relieve_directories(
    image: MetadataImage,
    broker_id: int,
    full: Collection[UUID],
    resting: Collection[UUID],
    *,
    settings: ElectionSettings = _USUAL,
) -> Steps[Decision[None]]:
    """Directories of the broker's are without room: what it leads there others lead that have room, as in a
    controlled shutdown. Where it replicates no longer (`resting`), it is not in sync any more."""
    elections = Elections(image, settings)
    records: list[PartitionChangeRecord] = []
    for directory in image.brokers[broker_id].log_dirs:
        if directory not in full and directory not in resting:
            continue
        is_resting = directory in resting
        for topic, number, state in looked_up(image, image.index.partitions(lies_in(directory))):
            if state.leader != broker_id and not (is_resting and broker_id in state.isr):
                yield LOOK_US
                continue
            yield CHANGE_US
            record = elections.relieve(topic, number, state, broker_id, is_resting=is_resting)
            if record is not None:
                records.append(record)
    return Decision(tuple((yield from _newest(records))), None, is_atomic=False)


def change_cordoned(broker: BrokerImage, directories: Collection[UUID]) -> tuple[Frame, ...]:
    """The broker said which directories get no replicas any more: noted the first time, and where they are
    others than before."""
    if broker.cordoned_log_dirs is not None and set(broker.cordoned_log_dirs) == set(directories):
        return ()
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=tuple(directories)
    )
    return (Frame(change, 3),)


def unregister_broker(
    image: MetadataImage, broker_id: int, *, settings: ElectionSettings = _USUAL
) -> Steps[Decision[int]]:
    """The broker is gone for good, and so is its id until somebody registers it again. The answer is the
    epoch of the process that it was.

    Raises `RequestError` BROKER_ID_NOT_REGISTERED.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RequestError(
            ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
        )
    awaited = settings.is_awaited
    settings = settings._replace(is_awaited=lambda one: one != broker_id and awaited(one))
    elections = Elections(image, settings, without=broker_id)
    partitions = image.index.partitions(has_member(broker_id))
    frames = yield from _newest((yield from changes_in_steps(elections, partitions)))
    gone = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return Decision((*frames, newest(gone)), broker.epoch, is_atomic=False)


def register_controller(image: MetadataImage, request: RegisterController) -> Decision[None]:
    """A controller process makes itself known; what it registered as before is over."""
    record = RegisterControllerRecord(
        controller_id=request.node_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=tuple(ControllerEndpoint(**endpoint._asdict()) for endpoint in request.endpoints),
        features=tuple(
            ControllerFeature(
                name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level
            )
            for f in request.features
        ),
    )
    return Decision((newest(record),), None)


def check_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registration of exactly this broker process; `RequestError` where it was replaced or never was."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RequestError(
            ErrorCode.broker_id_not_registered,
            f"Broker ID {broker_id} is not currently registered",
        )
    if broker.epoch != broker_epoch:
        raise RequestError(
            ErrorCode.stale_broker_epoch,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}",
        )
    return broker


def check_same_process(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """As `check_epoch`; who is not registered is stale, too (Kafka's ``checkBrokerEpoch``)."""
    if broker_id not in image.brokers:
        raise RequestError(
            ErrorCode.stale_broker_epoch, f"No broker registration found for broker id {broker_id}"
        )
    return check_epoch(image, broker_id, broker_epoch)


def _check_registration(
    image: MetadataImage,
    request: RegisterBroker,
    cluster_id: str,
    existing: BrokerImage | None,
    has_session: bool,
) -> None:
    if request.cluster_id != cluster_id:
        raise RequestError(
            ErrorCode.inconsistent_cluster_id,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if existing is not None and has_session and existing.incarnation_id != request.incarnation_id:
        raise RequestError(
            ErrorCode.duplicate_broker_registration,
            "Another broker is registered with that broker id. If the broker was recently restarted this "
            "should self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise RequestError(
            ErrorCode.broker_id_not_registered, "Controller does not support registering ZK brokers."
        )
    if not request.log_dirs:
        raise _invalid("No directories specified in request")
    if any(directory.int < _RESERVED_DIRECTORY_IDS for directory in request.log_dirs):
        raise _invalid("Reserved directory ID in request")
    if len(set(request.log_dirs)) < len(request.log_dirs):
        raise _invalid("Duplicate directory ID in request")
    for broker in image.brokers.values():
        taken = set(broker.log_dirs).intersection(request.log_dirs)
        if taken and broker.id != request.broker_id:
            directory = min(taken)
            raise _invalid(f"Broker {broker.id} is already registered with directory {directory}")
    if request.cordoned_log_dirs:
        raise _invalid(
            "Cordoned log directories are not supported: replicas are not moved between directories"
        )


def _check_features(image: MetadataImage, features: Sequence[FeatureRange]) -> None:
    """What is finalized lies within what the broker supports; a feature that it does not name is 0 to 0."""
    finalized = {**image.features, KRAFT_VERSION: image.kraft_version}
    named = {feature.name: feature for feature in features}
    for feature in features:
        _check_level(feature, finalized.get(feature.name, 0))
    if METADATA_VERSION not in named and METADATA_VERSION in finalized:
        raise _invalid(f"Request features do not contain '{METADATA_VERSION}'")
    for name in sorted(finalized):
        if name not in named and finalized[name]:
            _check_level(FeatureRange(name, 0, 0), finalized[name])


def _check_level(feature: FeatureRange, level: int) -> None:
    if level == 0 and feature.name == METADATA_VERSION:
        return  # an image of nothing, which has no level yet
    if not feature.min_level <= level <= feature.max_level:
        raise RequestError(
            ErrorCode.unsupported_version,
            f"Unable to register because the broker does not support finalized version {level} of "
            f"{feature.name}. The broker wants a version between {feature.min_level} and "
            f"{feature.max_level}, inclusive.",
        )


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_registration, message)


def _registration(
    request: RegisterBroker, features: Sequence[FeatureRange], epoch: int, existing: BrokerImage | None
) -> RegisterBrokerRecord:
    """`existing`: of the same process, which registers again."""
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=tuple(
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.endpoints
        ),
        features=tuple(
            BrokerFeature(name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level)
            for f in features
        ),
        rack=request.rack,
        fenced=existing is None or existing.fenced,
        in_controlled_shutdown=existing is not None and existing.in_controlled_shutdown,
        log_dirs=request.log_dirs,
    )


def _change_fencing(broker: BrokerImage, fenced: int) -> Frame:
    """In version 0: a change is written in the oldest version that holds it, as Kafka's controller does."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced)
    return Frame(change, 0)


def _newest(records: Sequence[PartitionChangeRecord]) -> Steps[list[Frame]]:
    frames = []
    for record in records:
        yield NEWEST_US
        frames.append(newest(record))
    return frames
