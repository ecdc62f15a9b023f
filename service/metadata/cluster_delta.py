"""Changes to registrations of brokers and controllers, collected from records. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.base.errors import CorruptionError
from service.metadata.image import BrokerImage, ControllerImage, EndpointImage, FeatureRange, MetadataImage
from service.metadata.records import (
    ZERO_UUID,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    filled_ids,
)


class ClusterDelta:
    """Changes to the brokers and controllers of an image (Kafka `ClusterDelta`). A record that contradicts it
    is a `CorruptionError`.

    ``changed_brokers``: ids of brokers that records name.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers: dict[int, BrokerImage] | None = None
        self._controllers: dict[int, ControllerImage] | None = None
        self.changed_brokers: set[int] = set()

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """The brokers after the changes."""
        return self._image.brokers if self._brokers is None else self._brokers

    @property
    def controllers(self) -> Mapping[int, ControllerImage]:
        """The controllers after the changes."""
        return self._image.controllers if self._controllers is None else self._controllers

    def _own_brokers(self) -> dict[int, BrokerImage]:
        """Return the brokers, copied from the image before the first change."""
        if self._brokers is None:
            self._brokers = dict(self._image.brokers)
        return self._brokers

    def _own_controllers(self) -> dict[int, ControllerImage]:
        """Return the controllers as `_own_brokers` does."""
        if self._controllers is None:
            self._controllers = dict(self._image.controllers)
        return self._controllers

    def _change_broker(self, broker_id: int, epoch: int, **changes: Any) -> None:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise CorruptionError(f"metadata record for broker {broker_id} of epoch {epoch}, not registered")
        self._own_brokers()[broker_id] = broker._replace(**changes)
        self.changed_brokers.add(broker_id)

    def register_broker(self, record: RegisterBrokerRecord) -> None:
        self._own_brokers()[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id or ZERO_UUID,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=filled_ids(record.log_dirs),
            cordoned_log_dirs=(
                None if record.cordoned_log_dirs is None else filled_ids(record.cordoned_log_dirs)
            ),
        )
        self.changed_brokers.add(record.broker_id)

    def unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._change_broker(record.broker_id, record.broker_epoch)
        del self._own_brokers()[record.broker_id]

    def fence_broker(self, record: FenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=True)

    def unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=False)

    def change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = filled_ids(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = filled_ids(record.cordoned_log_dirs)
        self._change_broker(record.broker_id, record.broker_epoch, **changes)

    def register_controller(self, record: RegisterControllerRecord) -> None:
        self._own_controllers()[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id or ZERO_UUID,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )

    def forget_controllers(self, node_ids: Iterable[int]) -> None:
        """Remove controllers that a snapshot lacks; no record removes a controller."""
        for node_id in node_ids:
            self._own_controllers().pop(node_id, None)


def _endpoints(endpoints: Iterable[Any]) -> tuple[EndpointImage, ...]:
    return tuple(EndpointImage(e.name, e.host, e.port, e.security_protocol) for e in endpoints)


def _features(features: Iterable[Any]) -> tuple[FeatureRange, ...]:
    """Convert features, sorted by name: Kafka writes them in any order."""
    return tuple(
        sorted(FeatureRange(f.name, f.min_supported_version, f.max_supported_version) for f in features)
    )
