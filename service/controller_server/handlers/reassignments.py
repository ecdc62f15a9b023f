"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860)."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from kio.schema.alter_partition_reassignments.v1 import response as altered
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import response as listed

from service.base.errors import RequestError
from service.base.slices import Slice, each_in_slices
from service.controller_client.forwarding import timeout_of
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.reassignment_control import list_reassignments
from service.metadata.controller.requests import OngoingReassignment, ReassignPartition, ReassignResult
from service.network.request import RequestContext
from service.serving.change_audit import audited
from service.serving.change_words import reassigned
from service.serving.request_host import NO_THROTTLE
from service.wire.api import ApiKey
from service.wire.refusals import refusal


@audited(reassigned)
async def alter(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AlterPartitionReassignments: begin, cancel or refuse each partition's reassignment.

    A request without topics needs no decision of the controller."""
    if not request.topics:
        return altered.AlterPartitionReassignmentsResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message="", responses=()
        )
    allows = request.allow_replication_factor_change
    named = ((topic.name, one) for topic in request.topics for one in topic.partitions)
    changes = await each_in_slices(_to_reassign, named)
    try:
        results = await side.controller.alter_reassignments(
            changes, allows_factor_change=allows, deadline_ms=side.deadline_ms(timeout_of(request))
        )
    except RequestError as e:
        return refusal(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, e.code, e.message)
    answers = iter(await each_in_slices(_altered, results))
    return altered.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=allows,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            altered.ReassignableTopicResponse(
                name=topic.name, partitions=tuple(next(answers) for _ in topic.partitions)
            )
            for topic in request.topics
        ),
    )


def _to_reassign(named: tuple[str, Any]) -> ReassignPartition:
    topic, one = named
    return ReassignPartition(topic, one.partition_index, one.replicas)


def _altered(one: ReassignResult) -> altered.ReassignablePartitionResponse:
    return altered.ReassignablePartitionResponse(
        partition_index=one.partition, error_code=one.error, error_message=one.message
    )


async def list_ongoing(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle ListPartitionReassignments from the committed image, on any controller, as Kafka does."""
    topics = request.topics
    named = None if topics is None else ((topic.name, topic.partition_indexes) for topic in topics)
    found = await Slice().go_on(list_reassignments(side.image, named))
    ongoing = iter(await each_in_slices(_ongoing, found))
    return listed.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(
            listed.OngoingTopicReassignment(name=name, partitions=tuple(next(ongoing) for _ in of_topic))
            for name, of_topic in groupby(found, attrgetter("topic"))
        ),
    )


def _ongoing(one: OngoingReassignment) -> listed.OngoingPartitionReassignment:
    return listed.OngoingPartitionReassignment(
        partition_index=one.partition,
        replicas=one.replicas,
        adding_replicas=one.adding,
        removing_replicas=one.removing,
    )
