"""What ``quorum-state`` says: in which epoch we are and whom we voted for in it. [P]

One line of JSON without a line end, as Apache Kafka 4.3 ``FileQuorumStateStore`` writes it. Version 0 goes
with kraft.version 0 (voters named by configuration), version 1 with kraft.version 1: it has the directory
that was voted for, and no voters.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.uuids import decode_uuid, encode_uuid
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY

MAX_EPOCH: Final = 2**31 - 2
"""An epoch is an int32, and there is always one more to stand in."""


class QuorumState(NamedTuple):
    """What must be on disk before anyone is told of it. `leader_id` and `voted_id` are -1 for nobody.

    `version` is the file's: 0 knows `voters`, 1 knows `voted_directory`.
    """

    epoch: int
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voters: tuple[int, ...] = ()
    voted_directory: UUID = NO_DIRECTORY
    version: int = 0


def encode_state(state: QuorumState) -> bytes:
    """The file's content.

    >>> encode_state(QuorumState(epoch=1, leader_id=1, voters=(1,)))[:46]
    b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"'
    >>> encode_state(QuorumState(epoch=1, leader_id=1, version=1))[-60:]
    b'votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    """
    fields: dict[str, Any] = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_id,
    }
    if state.version == 0:
        fields = {"clusterId": "", **fields, "appliedOffset": 0}
        fields["currentVoters"] = [{"voterId": voter} for voter in state.voters]
    else:
        fields["votedDirectoryId"] = encode_uuid(state.voted_directory)
    fields["data_version"] = state.version
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes) -> QuorumState:
    """Read either version. Raises `CorruptionError` for anything else."""
    try:
        fields: Any = json.loads(data)
        version = fields["data_version"]
        if version not in (0, 1):
            raise CorruptionError(f"quorum-state: data_version {version} is neither 0 nor 1")
        state = QuorumState(
            epoch=int(fields["leaderEpoch"]),
            leader_id=int(fields["leaderId"]),
            voted_id=int(fields["votedId"]),
            voters=tuple(int(voter["voterId"]) for voter in fields.get("currentVoters") or ()),
            voted_directory=decode_uuid(fields["votedDirectoryId"]) if version == 1 else NO_DIRECTORY,
            version=version,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CorruptionError(f"quorum-state: not as written: {type(e).__name__}: {e}") from e
    if not 0 <= state.epoch <= MAX_EPOCH:
        raise CorruptionError(f"quorum-state: epoch {state.epoch} is not between 0 and {MAX_EPOCH}")
    return state
