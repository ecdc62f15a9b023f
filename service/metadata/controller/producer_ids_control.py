"""Allocation of producer ids in blocks (KIP-730, Apache Kafka ``ProducerIdControlManager``). [P]"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.cluster_control import check_same_process
from service.metadata.controller.decision import ControllerResult, decided
from service.metadata.controller.requests import PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from service.metadata.image import MetadataImage
from service.metadata.records import ProducerIdsRecord

_MAX_PRODUCER_ID: Final = 2**63 - 1


def allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int
) -> ControllerResult[ProducerIdBlock]:
    """Allocate the next 1000 ids to this broker.

    Raises `RequestError` STALE_BROKER_EPOCH for a process that was replaced, or never registered.
    """
    check_same_process(image, broker_id, broker_epoch)
    first = image.next_producer_id
    if first > _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise RequestError(ErrorCode.unknown_server_error, "All producer ids are allocated.")
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return decided([record], ProducerIdBlock(first, PRODUCER_ID_BLOCK_SIZE))
