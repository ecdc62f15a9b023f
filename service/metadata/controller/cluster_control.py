"""Registration of brokers and controllers, and the check of a broker's epoch. [P]

Source: Apache Kafka ``ClusterControlManager``. Decisions run in steps, as a broker may have ten thousand
partitions. A decision with many records may be split into several batches: the broker's own record comes
last. `heartbeat_control` fences and unfences brokers, and begins their controlled shutdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.decision import ControllerResult, newest_frames
from service.metadata.controller.elections_control import (
    USUAL_ELECTIONS,
    Elections,
    ElectionSettings,
    changes_in_steps,
)
from service.metadata.controller.requests import RegisterBroker, RegisterController
from service.metadata.features import supported_features
from service.metadata.frames import newest
from service.metadata.image import (
    KRAFT_VERSION,
    METADATA_VERSION,
    BrokerImage,
    FeatureRange,
    MetadataImage,
    PartitionImage,
)
from service.metadata.partition_index import has_member
from service.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

_RESERVED_DIRECTORY_IDS: Final = 100
"""Directory ids below this number are reserved (Kafka ``DirectoryId``: unassigned, lost …)."""


def register_broker(
    image: MetadataImage,
    request: RegisterBroker,
    *,
    cluster_id: str,
    next_offset: int,
    has_session: bool,
    is_heard: Callable[[int, int], bool] = lambda broker_id, epoch: True,
    settings: ElectionSettings = USUAL_ELECTIONS,
) -> Steps[ControllerResult[int]]:
    """Register a broker process, fenced and without leaderships; the response is its epoch.

    `has_session`: a process with this id is alive. `is_heard(id, epoch)`: that process has sent a heartbeat.
    `next_offset`: offset of the first record. Where the last process did not shut down cleanly, the broker
    leaves every ISR and, with eligible leader replicas, every ELR. Raises `RequestError`:
    INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION, UNSUPPORTED_VERSION,
    BROKER_ID_NOT_REGISTERED.
    """
    existing = image.brokers.get(request.broker_id)
    features = supported_features() if request.features is None else request.features
    _check_registration(image, request, cluster_id, existing, has_session)
    _check_features(image, features)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        again = _registration(request, features, existing.epoch, existing)
        return ControllerResult((newest(again),), existing.epoch)
    records = yield from _shutdown(image, request, existing, is_heard, settings)
    frames = yield from newest_frames(records)
    epoch = next_offset + len(frames)  # the offset of its record, so that epochs rise (invariant B3)
    frames.append(newest(_registration(request, features, epoch, None)))
    return ControllerResult(tuple(frames), epoch, is_atomic=False)


def _shutdown(
    image: MetadataImage,
    request: RegisterBroker,
    existing: BrokerImage | None,
    is_heard: Callable[[int, int], bool],
    settings: ElectionSettings,
) -> Steps[list[PartitionChangeRecord]]:
    """Decide the partition changes that end the last process with this id.

    After a clean shutdown the broker has everything that it acknowledged (invariant P16). It stays in an ISR
    of which no other member has sent a heartbeat: they may all have died at once. If it left, only they could
    lead, and they may never come back. Without it nothing is committed, so living members wait until it has
    caught up.
    """
    broker_id = request.broker_id
    is_clean = existing is not None and existing.epoch == request.previous_epoch
    elections = Elections(image, settings)
    if elections.is_elr_enabled and not is_clean:
        elections = Elections(image, settings, unclean=broker_id)
        return (yield from changes_in_steps(elections, image.index.partitions(has_member(broker_id))))
    if existing is None or existing.fenced:
        return []  # leads nothing, and is in the ISRs that `fence_broker` left it in

    is_alone = nobody_else_heard(image, broker_id, is_heard)
    return (yield from leave_isrs(image, broker_id, settings, lambda state: is_clean and is_alone(state)))


def nobody_else_heard(
    image: MetadataImage, broker_id: int, is_heard: Callable[[int, int], bool]
) -> Callable[[PartitionImage], bool]:
    """Return whether a partition's ISR has other members, none of which has sent a heartbeat."""

    def holds(state: PartitionImage) -> bool:
        others = [image.brokers[one] for one in state.isr if one != broker_id and one in image.brokers]
        return bool(others) and not any(is_heard(one.id, one.epoch) for one in others)

    return holds


def leave_isrs(
    image: MetadataImage,
    broker_id: int,
    settings: ElectionSettings,
    stays: Callable[[PartitionImage], bool] = lambda state: False,
) -> Steps[list[PartitionChangeRecord]]:
    """Decide the changes of partitions that the broker stops serving; it stays in an ISR where `stays`."""
    partitions = list(image.index.partitions(has_member(broker_id)))
    gone = yield from changes_in_steps(
        Elections(image, settings, without=broker_id),
        partitions,
        lambda state: broker_id in state.isr and not stays(state),
    )
    awaited = yield from changes_in_steps(
        Elections(image, settings, awaited=broker_id),
        partitions,
        lambda state: broker_id in state.isr and stays(state),
    )
    return gone + awaited


def unregister_broker(
    image: MetadataImage, broker_id: int, *, settings: ElectionSettings = USUAL_ELECTIONS
) -> Steps[ControllerResult[int]]:
    """Remove a broker's registration; the response is the epoch of its last process.

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
    frames = yield from newest_frames((yield from changes_in_steps(elections, partitions)))
    gone = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return ControllerResult((*frames, newest(gone)), broker.epoch, is_atomic=False)


def register_controller(image: MetadataImage, request: RegisterController) -> ControllerResult[None]:
    """Register a controller process; replaces its last registration."""
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
    return ControllerResult((newest(record),), None)


def check_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the registration of this broker process; `RequestError` where it was replaced or never
    registered: what an earlier process asked for counts for nothing (invariant B4)."""
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
    """Check the epoch as `check_epoch` does; an unregistered broker is stale, too (Kafka's
    ``checkBrokerEpoch``)."""
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
    """Check that the broker supports every finalized level; an omitted feature has the range 0 to 0."""
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
        return  # an empty image has no level yet
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
    """Return the registration record. `existing`: the registration that this same process repeats."""
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
