"""Attempts to send a partition of a replay: the newest one sends, once the one before has stopped.

Spark may give up a task that still runs (its executor was lost, and is not gone), and a replay may be started
while another one runs. Brokers would take the records of both. So each attempt at a partition first writes an
object of its own, which must not exist yet; it holds the attempt's state, and no other attempt ever writes
it:

1. Attempt n sends, saves its state every second, and checks for the object of n + 1 each time.
2. Attempt n + 1 writes its object. If n has not recorded its end, n + 1 waits for that, `PATIENCE_S` long.
3. n finds the object, sends nothing more, waits for what is in flight and records its end.
4. n + 1 begins at the offset that n has recorded.

Until its next check n sends what it has handed to its client: for a second, and the time of the store's
answer. So a process that is stopped for longer than `PATIENCE_S` and resumed may send what it had in its
queue after the records of its successor; without transactions Kafka's protocol has no fence against that. A
later run outranks an earlier one, whose attempts end and cannot claim anything back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from service.base.errors import StorageError
from service.pipelines.replay_state import MAX_STATE_BYTES, Part, PartState, decode_state
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

CHECK_S: Final = 1.0
PATIENCE_S: Final = 5.0
MAX_ATTEMPTS: Final = 10_000
_POLL_S: Final = 0.2


class AttemptSuperseded(StorageError):
    """Another attempt sends this partition now."""


class Attempts:
    """The newest attempt at each partition. Results are cached: the number of attempts only grows."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest: dict[Part, int] = {}

    def newest(self, part: Part) -> tuple[int, PartState]:
        """Return the newest attempt's number and state; -1 and the partition's start where there was none."""
        found = -1, PartState(part.begin_offset)
        for attempt in range(max(0, self._newest.get(part, 0)), MAX_ATTEMPTS):
            try:
                state = decode_state(self._store.get(part.key(attempt), max_size=MAX_STATE_BYTES))
            except ObjectNotFound:
                self._newest[part] = attempt - 1
                return found
            found = attempt, state
        raise StorageError(f"{part.key(0)}: {MAX_ATTEMPTS} attempts is the maximum; use an empty state")


class Claim:
    """One attempt, held by its task. `before` is where it begins, with the counts of earlier attempts."""

    def __init__(self, store: ObjectStore, part: Part, attempt: int, before: PartState) -> None:
        self._store = store
        self._part = part
        self._attempt = attempt
        self.before = before

    def check(self) -> None:
        """Raise `AttemptSuperseded` where there is a newer attempt."""
        try:
            self._store.head(self._part.key(self._attempt + 1))
        except ObjectNotFound:
            return
        raise AttemptSuperseded(
            f"{self._part.topic}-{self._part.partition}: another attempt sends it now; this one has stopped"
        )

    def save(self, next_offset: int, records: int, size_bytes: int, *, is_ended: bool = False) -> None:
        """Write the attempt's progress; counts are this attempt's own."""
        before = self.before
        state = PartState(
            next_offset, before.records + records, before.size_bytes + size_bytes, before.run, is_ended
        )
        self._store.put(self._part.key(self._attempt), state.encode())


def claim(
    store: ObjectStore,
    part: Part,
    run: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Claim:
    """Start the next attempt at a partition, when the one before has ended or had time to notice this one.

    Raises `AttemptSuperseded` where a later run has begun to send it.
    """
    attempts = Attempts(store)
    while True:
        newest, before = attempts.newest(part)
        if before.run > run:
            raise AttemptSuperseded(f"{part.topic}-{part.partition}: another run of this replay sends it now")
        mine = before._replace(run=run, is_ended=False)
        if store.put_if_absent(part.key(newest + 1), mine.encode()):
            break
    deadline = clock() + PATIENCE_S
    while newest >= 0 and not before.is_ended and clock() < deadline:
        sleep(_POLL_S)
        before = decode_state(store.get(part.key(newest), max_size=MAX_STATE_BYTES))
    found = Claim(store, part, newest + 1, before._replace(run=run, is_ended=False))
    found.check()
    return found


def begin_run(store: ObjectStore) -> int:
    """Return the number of a new run: greater than that of every run before it."""
    for run in range(1, MAX_ATTEMPTS):
        if store.put_if_absent(f"run-{run}.json", b"{}"):
            return run
    raise StorageError(f"{MAX_ATTEMPTS} runs with one state is the maximum; use an empty one")
