"""RewriteRange in terms of tiering: decode the report of a worker, and say errors as the protocol does."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.remote.catalog import RewriteKind
from service.remote.format.rows import decode_entries
from service.tiering.rewriting.outside import OutsideRewrites, RangeAnswer
from service.tiering.rewriting.report_check import RewriteReport
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse, RewriteStep

_KINDS = frozenset(map(int, RewriteKind))


class RangeAnswers:
    """`RangePublisher` of a node with a cold tier."""

    def __init__(self, rewrites: OutsideRewrites) -> None:
        self._rewrites = rewrites

    async def answer(self, request: RewriteRangeRequest) -> RewriteRangeResponse:
        """Carry out one step of a request that is not malformed."""
        try:
            done = await self._carry_out(request)
        except RequestError as e:
            return RewriteRangeResponse(error_code=e.code, error_message=e.message)
        return RewriteRangeResponse(
            error_code=ErrorCode.none, leader_epoch=done.leader_epoch, version=done.version
        )

    async def _carry_out(self, request: RewriteRangeRequest) -> RangeAnswer:
        topic_id, partition, rewrite_id = request.topic_id, request.partition, request.rewrite_id
        assert topic_id is not None
        assert rewrite_id is not None
        if request.kind not in _KINDS:
            raise RequestError(ErrorCode.invalid_request, f"no rule is of kind {request.kind}")
        kind = RewriteKind(request.kind)
        offsets = request.base_offset, request.last_offset
        if request.step == RewriteStep.BEGIN:
            return await self._rewrites.begin(
                topic_id, partition, rewrite_id, kind, *offsets, request.erasure_id
            )
        if request.step == RewriteStep.ALIVE:
            return self._rewrites.alive(topic_id, partition, rewrite_id)
        if request.step == RewriteStep.COMMIT:
            # A megabyte of rows takes a tenth of a second.
            report = await self._rewrites.on_a_thread(partial(_report, request, topic_id, rewrite_id))
            return await self._rewrites.commit(topic_id, partition, report)
        return await self._rewrites.end(topic_id, partition, rewrite_id)


def _report(request: RewriteRangeRequest, topic_id: UUID, rewrite_id: UUID) -> RewriteReport:
    """Return what the worker has made. Raises `RequestError` INVALID_REQUEST for foreign keys, and for
    entries that are none, or of other offsets than the run. Runs on an offload thread."""
    try:
        entries = decode_entries(bytes(request.entries), topic_id, request.partition)
    except CorruptionError as e:
        raise RequestError(ErrorCode.invalid_request, str(e)) from e
    if not entries or (entries[0].base_offset, entries[-1].last_offset) != (
        request.base_offset,
        request.last_offset,
    ):
        raise RequestError(ErrorCode.invalid_request, "the new objects do not have the run's offsets")
    return RewriteReport(rewrite_id, request.old_keys, entries)
