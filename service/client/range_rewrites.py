"""RewriteRange: what a worker outside of the brokers asks of the leader of one partition. Blocking.

Each step is repeated where the leader has not answered, or another broker leads by now: it does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.client.admin import Cluster
from service.client.offset_queries import leaders_of
from service.wire.api import ApiKey
from service.wire.errors import WireError
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse, RewriteStep

_TRIES: Final = 10
_AGAIN: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out})
_NO_LEADER: Final = -1
_SILENCE_S: Final = 60.0
"""Longest silence of a leader: it answers within 20 s, published or not."""


class BegunRewrite(NamedTuple):
    """Answer to a begin: the leader epoch of the new objects, and the chain's version that has the run."""

    leader_epoch: int
    version: int


class RangeLeader:
    """The leader of one partition, whoever it is. `sleep` waits before a step is repeated.

    Each step has connections of its own: an object takes minutes, in which brokers come and go and close
    connections that are idle. For any thread.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        tip: TopicIdPartition,
        sleep: Callable[[float], None],
        erasure_id: UUID | None = None,
    ) -> None:
        """`connect` connects to any broker. `erasure_id`: the order that erasures fulfil; None for merges."""
        self._connect = connect
        self._tip = tip
        self._sleep = sleep
        self._erasure_id = erasure_id

    def begin(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int) -> BegunRewrite:
        """Begin a rewrite."""
        answer = self._ask(rewrite_id, RewriteStep.BEGIN, kind, base_offset, last_offset)
        return BegunRewrite(answer.leader_epoch, answer.version)

    def alive(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int) -> None:
        """Show that the worker of a rewrite lives; one that is gone is refused with FENCED_LEADER_EPOCH."""
        self._ask(rewrite_id, RewriteStep.ALIVE, kind, base_offset, last_offset)

    def commit(
        self,
        rewrite_id: UUID,
        kind: int,
        base_offset: int,
        last_offset: int,
        old_keys: Sequence[str],
        entries: bytes,
    ) -> int:
        """Have the run published; return the version of the chain that has it."""
        answer = self._ask(
            rewrite_id, RewriteStep.COMMIT, kind, base_offset, last_offset, tuple(old_keys), entries
        )
        return answer.version

    def end(self, rewrite_id: UUID, kind: int, base_offset: int, last_offset: int) -> None:
        """Give the rewrite up."""
        self._ask(rewrite_id, RewriteStep.GIVE_UP, kind, base_offset, last_offset)

    def _ask(
        self,
        rewrite_id: UUID,
        step: RewriteStep,
        kind: int,
        base_offset: int,
        last_offset: int,
        old_keys: tuple[str, ...] = (),
        entries: bytes = b"",
    ) -> RewriteRangeResponse:
        """Raises `RequestError` where the leader refuses, `StorageError` where none answers."""
        request = RewriteRangeRequest(
            topic_id=self._tip.topic_id,
            partition=self._tip.partition,
            rewrite_id=rewrite_id,
            step=step,
            kind=kind,
            base_offset=base_offset,
            last_offset=last_offset,
            erasure_id=self._erasure_id,
            old_keys=old_keys,
            entries=entries,
        )
        why = ""
        for number in range(_TRIES):
            if number:
                self._sleep(min(0.1 * 2**number, 5))
            try:
                answer = self._ask_leader(request)
            except (OSError, WireError, StorageError) as e:
                why = str(e)
                continue
            if answer is None:
                why = "it has no leader"
            elif answer.error_code == ErrorCode.none:
                return answer
            elif answer.error_code in _AGAIN:
                why = answer.error_message or answer.error_code.name
            else:
                message = f"{self._tip}: {answer.error_message or answer.error_code.name}"
                raise RequestError(ErrorCode(answer.error_code), message)
        raise StorageError(f"{self._tip}: its leader does not carry the step out: {why}")

    def _ask_leader(self, request: RewriteRangeRequest) -> RewriteRangeResponse | None:
        """Return the answer of whoever leads now; None where nobody does."""
        with self._connect() as cluster:
            (leader,) = leaders_of(cluster, [(self._tip.topic, self._tip.partition)])
            if leader == _NO_LEADER:
                return None
            with cluster.apart(leader, _SILENCE_S) as client:
                answer: RewriteRangeResponse = client.request(ApiKey.REWRITE_RANGE, request)
        return answer
