"""Which attempt sends a partition of a replay: the newest, and it begins when the one before has stopped.

Spark may give up a task that still runs (its executor was lost, and is not gone), and a replay may be started
while another one runs. Brokers would take the records of both. So each attempt at a partition begins by
writing an object of its own, which must not be there yet; it holds the attempt's state, and nobody else ever
writes it:

1. Attempt n sends, saves its state every second, and looks for the object of n + 1 each time.
2. Attempt n + 1 writes its object. If n has not said that it has ended, it waits for that, `PATIENCE_S` long.
3. n sees the object, sends nothing more, waits for what is under way and says that it has ended.
4. n + 1 begins where n says it came to.

What n has handed to its client is sent until it looks: a second, and what the store takes to answer. A
process that is stopped for longer than `PATIENCE_S` and woken again may so send what it had in its queue,
behind what its successor has sent; there is no fence against it in Kafka's protocol without transactions.
A run that was begun later outranks an earlier one: attempts of that end, and cannot claim anything back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from service.base.errors import StorageError
from service.pipelines.replay_state import MAX_STATE_BYTES, Part, PartState, decode_state
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

LOOK_S: Final = 1.0
PATIENCE_S: Final = 5.0
MAX_ATTEMPTS: Final = 10_000
_POLL_S: Final = 0.2


class Superseded(StorageError):
    """Somebody else sends this partition now."""


class Attempts:
    """The newest attempt at each partition. What was found is remembered: attempts only become more."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest: dict[Part, int] = {}

    def newest(self, part: Part) -> tuple[int, PartState]:
        """Its number and its state; -1 and the beginning of the partition where there was none."""
        found = -1, PartState(part.begin_offset)
        for attempt in range(max(0, self._newest.get(part, 0)), MAX_ATTEMPTS):
            try:
                state = decode_state(self._store.get(part.key(attempt), max_size=MAX_STATE_BYTES))
            except ObjectNotFound:
                self._newest[part] = attempt - 1
                return found
            found = attempt, state
        raise StorageError(f"{part.key(0)}: {MAX_ATTEMPTS} attempts are enough; use an empty state")


class Claim:
    """One attempt, by the task that makes it. `before` is where it begins, counts of earlier ones with it."""

    def __init__(self, store: ObjectStore, part: Part, attempt: int, before: PartState) -> None:
        self._store = store
        self._part = part
        self._attempt = attempt
        self.before = before

    def look(self) -> None:
        """`Superseded` where there is a newer attempt."""
        try:
            self._store.head(self._part.key(self._attempt + 1))
        except ObjectNotFound:
            return
        raise Superseded(
            f"{self._part.topic}-{self._part.partition}: another attempt sends it now; this one has stopped"
        )

    def save(self, next_offset: int, records: int, size_bytes: int, *, is_ended: bool = False) -> None:
        """How far it has come; counts are this attempt's own."""
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
    """The next attempt at a partition, when the one before has ended or had time to see this one.

    Raises `Superseded` where a later run has begun to send it.
    """
    attempts = Attempts(store)
    while True:
        newest, before = attempts.newest(part)
        if before.run > run:
            raise Superseded(f"{part.topic}-{part.partition}: another run of this replay sends it now")
        mine = before._replace(run=run, is_ended=False)
        if store.put_if_absent(part.key(newest + 1), mine.encode()):
            break
    deadline = clock() + PATIENCE_S
    while newest >= 0 and not before.is_ended and clock() < deadline:
        sleep(_POLL_S)
        before = decode_state(store.get(part.key(newest), max_size=MAX_STATE_BYTES))
    found = Claim(store, part, newest + 1, before._replace(run=run, is_ended=False))
    found.look()
    return found


def begin_run(store: ObjectStore) -> int:
    """The number of a run that begins now: greater than that of every run before it."""
    for run in range(1, MAX_ATTEMPTS):
        if store.put_if_absent(f"run-{run}.json", b"{}"):
            return run
    raise StorageError(f"{MAX_ATTEMPTS} runs with one state are enough; use an empty one")
