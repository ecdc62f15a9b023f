"""Production of a single record by an administrator: one batch to the partition's leader. Blocking."""

from __future__ import annotations

from uuid import UUID

from service.base.errors import StorageError
from service.client.admin import TIMEOUT, ChangingCluster, raise_for
from service.client.admin_models import Place
from service.client.offset_queries import NO_LEADER, leaders_of
from service.client.places import place_name
from service.wire.api import ApiKey, request_module

_ALL_IN_SYNC = -1


def produce_batch(cluster: ChangingCluster, topic_id: UUID, place: Place, batch: bytes) -> int:
    """Append a batch and wait until all replicas in sync have it; return its first offset.

    It is sent once: where no answer comes, it may be in the log all the same. Raises `RequestError`,
    `StorageError` and `OSError`.
    """
    (leader,) = leaders_of(cluster, (place,))
    if leader == NO_LEADER:
        raise StorageError(f"{place_name(place)} has no leader")
    module = request_module(ApiKey.PRODUCE)
    data = module.PartitionProduceData(index=place[1], records=batch)
    request = module.ProduceRequest(
        transactional_id=None,
        acks=_ALL_IN_SYNC,
        timeout=TIMEOUT,
        topic_data=(module.TopicProduceData(topic_id=topic_id, partition_data=(data,)),),
    )
    (topic,) = cluster.client(leader).request(ApiKey.PRODUCE, request).responses
    (result,) = topic.partition_responses
    raise_for(result.error_code, result.error_message, place_name(place))
    offset: int = result.base_offset
    return offset
