"""Requests of the driver to the leaders of an erasure's partitions (RewriteRange). For any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from service.base.errors import FirnError
from service.client.admin import Cluster
from service.client.range_rewrites import BegunRewrite, RangeLeader
from service.remote.catalog import RewriteKind
from service.remote.format.manifest import SegmentEntry
from service.remote.format.rows import encode_entries
from service.tiering.rewriting.outside_worker import SIGN_OF_LIFE_MS
from service.tiering.rewriting.rules import ChainRun

log = logging.getLogger(__name__)

_KIND: Final = int(RewriteKind.ERASE)


class RangeLeaders:
    """Steps of the rewrites of one order. In a ``with`` it shows leaders that the job lives."""

    def __init__(
        self, connect: Callable[[], Cluster], order_id: UUID, sleep: Callable[[float], None]
    ) -> None:
        """`connect` connects to any broker; `sleep` waits before a step is repeated."""
        self._connect = connect
        self._order_id = order_id
        self._sleep = sleep
        self._lock = threading.Lock()
        self._live: dict[UUID, ChainRun] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show_life, name="signs-of-life", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def begun(self, rewrite_id: UUID, run: ChainRun) -> Iterator[BegunRewrite]:
        """Begin a rewrite, and show that it lives while the body runs; give it up where the body raises.

        Raises as `RangeLeader`.
        """
        begun = self._leader(run).begin(rewrite_id, _KIND, run.base_offset, run.last_offset)
        with self._lock:
            self._live[rewrite_id] = run
        try:
            yield begun
        except BaseException:
            self._give_up(rewrite_id, run)
            raise
        finally:
            with self._lock:
                del self._live[rewrite_id]

    def commit(self, rewrite_id: UUID, run: ChainRun, entries: Sequence[SegmentEntry]) -> None:
        """Have the run published. Raises as `RangeLeader`."""
        self._leader(run).commit(
            rewrite_id, _KIND, run.base_offset, run.last_offset, run.keys, encode_entries(entries)
        )

    def _leader(self, run: ChainRun) -> RangeLeader:
        return RangeLeader(self._connect, run.tip, self._sleep, self._order_id)

    def _give_up(self, rewrite_id: UUID, run: ChainRun) -> None:
        try:
            self._leader(run).end(rewrite_id, _KIND, run.base_offset, run.last_offset)
        except (FirnError, OSError) as e:
            log.info("%s: the leader gives rewrite %s up by itself: %s", run.tip, rewrite_id, e)

    def _show_life(self) -> None:
        while not self._ended.wait(SIGN_OF_LIFE_MS / 1000):
            with self._lock:
                live = list(self._live.items())
            for rewrite_id, run in live:
                try:
                    self._leader(run).alive(rewrite_id, _KIND, run.base_offset, run.last_offset)
                except (FirnError, OSError) as e:
                    log.warning("%s: no sign of life of rewrite %s: %s", run.tip, rewrite_id, e)
