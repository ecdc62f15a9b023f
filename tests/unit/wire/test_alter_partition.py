"""AlterPartition of versions 2 and 3: the older one has no broker epochs."""

from __future__ import annotations

from uuid import UUID

from service.wire.api import ApiKey, decode_request, encode_request
from service.wire.api import parse_request_header as head_of
from tests.support.alter_partition import AlterIsr, alter_isr


def test_an_older_controller_is_sent_brokers_without_epochs() -> None:
    one, two = UUID(int=1), UUID(int=2)
    message = alter_isr(
        4,
        7,
        [
            AlterIsr(one, 0, 5, 6, ((4, 7), (5, -1))),
            AlterIsr(two, 0, 5, 6, ()),
            AlterIsr(one, 1, 5, 6, ((4, 7),)),
        ],
    )
    frame = encode_request(ApiKey.ALTER_PARTITION, 3, 1, "b", message)[4:]
    assert decode_request(head_of(frame), frame) == message
    older = encode_request(ApiKey.ALTER_PARTITION, 2, 1, "b", message)[4:]
    read = decode_request(head_of(older), older)
    assert [each.broker_id for each in read.topics[0].partitions[0].new_isr_with_epochs] == [4, 5]
