"""DescribeHealth, an API of Firn's own: this broker's findings, and the age of its metadata."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.health.findings import MOST_TOLD, Finding
from service.network.request import RequestContext
from service.serving.request_host import Broker
from service.wire.health import DescribeHealthRequest, DescribeHealthResponse, ToldFinding


def handle(broker: Broker, context: RequestContext, request: DescribeHealthRequest) -> DescribeHealthResponse:
    """Return the findings, the most severe first."""
    config = broker.config
    age_ms = broker.metadata.confirmed_age_ms
    return DescribeHealthResponse(
        error_code=ErrorCode.none,
        node_id=config.node_id,
        metadata_age_ms=-1 if age_ms is None else age_ms,
        session_ms=config.cluster.broker_session_timeout_ms,
        findings=tuple(map(_told, broker.judged()[:MOST_TOLD])),
    )


def _told(one: Finding) -> ToldFinding:
    return ToldFinding(
        severity=one.severity.name.lower(),
        subject=one.subject,
        since_ms=-1 if one.since_ms is None else one.since_ms,
        words=one.words,
        meaning=one.meaning,
        action=one.action,
        anchor=one.anchor,
    )
