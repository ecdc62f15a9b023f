"""The canonical messages of BrokerHeartbeat: Kafka's newest, with fields of Firn's own. [P]

All are tagged fields with numbers that Apache Kafka does not use: Kafka's nodes skip them (KIP-482).

    request    tag 20000: FullLogDirs [uuid], directories that refuse records because their disk is full
               tag 20001: RestingLogDirs [uuid], full directories whose replicas do not fetch either
    response   tag 20000: MovesLeaders bool, the controller moves leaderships away from full directories
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from uuid import UUID

from kio.schema.broker_heartbeat.v2 import request, response

__all__ = ["BrokerHeartbeatRequest", "BrokerHeartbeatResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest(request.BrokerHeartbeatRequest):
    full_log_dirs: tuple[UUID | None, ...] = field(metadata={"kafka_type": "uuid", "tag": 20000}, default=())
    resting_log_dirs: tuple[UUID | None, ...] = field(
        metadata={"kafka_type": "uuid", "tag": 20001}, default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse(response.BrokerHeartbeatResponse):
    moves_leaders: bool = field(metadata={"kafka_type": "bool", "tag": 20000}, default=False)
