"""Helpers of tests that fetch: values of records, offsets by time."""

from __future__ import annotations

from typing import Any

from service.records.decode import iter_records
from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk

DAY = 1_700_000_000_000


def values(records: bytes | None) -> list[bytes | None]:
    """Values of the whole batches in a fetched chunk; the end may be cut."""
    data, found = memoryview(records or b""), []
    while len(data) > 12 and (size := int.from_bytes(data[8:12], "big") + 12) <= len(data):
        found += [record.value for record in iter_records(data[:size])]
        data = data[size:]
    return found


def list_offset(talk: Talk, timestamp: int, topic: str = "t", partition: int = 0) -> Any:
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    answer = talk(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name=topic, partitions=(asked,)),),
        timeout=20_000,
    )
    return answer.topics[0].partitions[0]
