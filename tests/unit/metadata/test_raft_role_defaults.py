"""Default values of the states and messages of Raft, and the timeouts of Apache Kafka."""

from __future__ import annotations

from service.metadata.raft.requests import NONE, FetchSnapshotResponse, RaftFetchResponse
from service.metadata.raft.roles import Follower, Leader, RaftTiming, ReplicaState


def test_states_and_messages_default_to_unknown() -> None:
    nothing = RaftFetchResponse(NONE, 4)
    assert (nothing.high_watermark, nothing.log_start, nothing.leader_id) == (-1, -1, -1)
    piece_of_nothing = FetchSnapshotResponse(NONE, 4)
    assert (piece_of_nothing.size, piece_of_nothing.position, piece_of_nothing.data) == (0, 0, b"")
    unheard = ReplicaState()
    assert (unheard.end_offset, unheard.last_fetch_ms, unheard.last_caught_up_ms, unheard.leader_end) == (
        -1,
    ) * 4
    fresh = Follower(deadline_ms=1, update_due_ms=2)
    assert (fresh.has_fetched, fresh.is_appending, fresh.has_updated, fresh.leader_high_watermark) == (
        False,
    ) * 3 + (-1,)
    new = Leader(5, (1,), 9)
    assert (new.committed, new.visible_end, new.visible_at_ms, new.change) == (-1, 0, None, None)


def test_timeouts_of_controllers_are_apache_kafkas() -> None:
    """``controller.quorum.*``, and what `KafkaRaftClient` has as constants: a MiB a fetch, half a second."""
    timing = RaftTiming()
    assert (timing.election_timeout_ms, timing.fetch_timeout_ms, timing.election_backoff_max_ms) == (
        1000,
        2000,
        1000,
    )
    assert (timing.request_timeout_ms, timing.retry_backoff_ms, timing.append_linger_ms) == (2000, 20, 0)
    assert (timing.fetch_max_bytes, timing.snapshot_max_bytes, timing.fetch_wait_ms) == (
        1_048_576,
        1_048_576,
        500,
    )
    assert (timing.refused_election, timing.auto_join) == (True, False)
