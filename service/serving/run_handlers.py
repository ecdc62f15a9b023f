"""Requests that a broker answers from the bytes that have arrived: `network.request.RunHandler`.

No header, request or response becomes an object, and the bytes are not copied. The first one that is not
ordinary goes to `Dispatcher`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from service.network.request import AnsweredRun, RequestContext
from service.serving.ordinary_fetch import answer
from service.serving.produce_runs import ProduceRuns
from service.serving.request_host import Broker
from service.wire.apis import ApiKey
from service.wire.frames import SIZE_BYTES

if TYPE_CHECKING:
    from service.groups.commit_plans import CommitPlan

_HEAD_BYTES: Final = 12
"""Size, API key, version, correlation id."""
_FRAME_SIZE: Final = struct.Struct(">i").unpack_from
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
_ALONE: Final = (_FETCH, _OFFSET_COMMIT)
"""APIs of which one request is answered at a time."""

CommitByPlan = Callable[[Broker, RequestContext, "CommitPlan", memoryview], bytes | None]


class RunHandlers:
    """The run handlers of a broker, by API. Owned by the event loop."""

    __slots__ = ("_broker", "_commit_by_plan", "_produce")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commit_by_plan: CommitByPlan | None = None
        """loaded by the first commit: a node without groups does without their code"""
        self._produce = ProduceRuns(broker)

    def __call__(self, context: RequestContext, data: memoryview, start: int, end: int) -> AnsweredRun | None:
        """See `network.request.RunHandler`."""
        if end - start < _HEAD_BYTES or data[start + SIZE_BYTES]:
            return None
        key = data[start + SIZE_BYTES + 1]
        if key == _PRODUCE:
            return self._produce(context, data, start, end)
        if key not in _ALONE:
            return None
        begin = start + SIZE_BYTES
        stop = begin + int.from_bytes(data[start:begin])
        frame = data[begin:stop]
        if key == _OFFSET_COMMIT:
            return self._commit(context, frame, stop)
        return self._fetch(context, frame, stop)

    def _commit(self, context: RequestContext, frame: memoryview, stop: int) -> AnsweredRun | None:
        """Commit a request that is like the last commit of its connection (`groups/commit_plans`)."""
        broker = self._broker
        plans = broker.groups.plans
        plan = None if plans is None else plans.find(context.connection_id)
        if plan is None or broker.quotas.active:
            return None
        context.api_key, context.api_version = _OFFSET_COMMIT, plan.plain.version
        context.client_id, context.correlation_id = plan.client_id, _correlation_id(frame)
        if self._commit_by_plan is None:
            from service.serving.handlers.offset_commit import commit_by_plan

            self._commit_by_plan = commit_by_plan
        response = self._commit_by_plan(broker, context, plan, frame)
        plan.is_tried = response is None
        return None if response is None else AnsweredRun(1, stop, (response,), len(response))

    def _fetch(self, context: RequestContext, frame: memoryview, stop: int) -> AnsweredRun | None:
        """Answer a fetch that is like the last one of its connection (`fetch_plans`), if records are at
        hand."""
        broker = self._broker
        if broker.quotas.active or not broker.fetches_plainly:
            return None
        plans = broker.fetch_plans
        plan = plans.find(context.connection_id)
        offset = None if plan is None else plan.offset_in(frame)
        if plan is None or offset is None:
            plan = plans.learn(context, frame)
            offset = None if plan is None else plan.offset_in(frame)
            if plan is None or offset is None:
                return None
        correlation_id = _correlation_id(frame)
        parts = answer(broker, plan.asked, (offset,), correlation_id)
        plan.is_tried = parts is None
        if parts is None:
            return None
        context.api_key, context.api_version = _FETCH, plan.asked.version
        context.client_id, context.correlation_id = plan.asked.client_id, correlation_id
        size = SIZE_BYTES + _FRAME_SIZE(parts[0])[0]  # type: ignore[arg-type]  # the first one is memory
        return AnsweredRun(1, stop, parts, size, broker.note_send_failure)


def _correlation_id(frame: memoryview) -> int:
    return int.from_bytes(frame[4:8], signed=True)
