"""Audit log of what the cluster itself changes, by the active controller: a line for each kind and moment."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from service.base.slices import Slice
from service.metadata.controller.change_summary import ChangeSummary, matters
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.security.change_audit import tell

SUM_S: Final = 0.5
"""Time whose changes are one line"""
MOST_WAITING: Final = 1000
"""Deltas that are kept until then; more are summed at once."""


class ClusterChangeLog:
    """Summary of published deltas, told from time to time. Owned by the event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[MetadataImage, MetadataImage, MetadataDelta]] = []
        self._telling: asyncio.Task[None] | None = None
        self._is_full = asyncio.Event()

    def published(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        """Note a delta that this node, the active controller, has published."""
        if not matters(before, after, delta):
            return
        self._waiting.append((before, after, delta))
        if len(self._waiting) >= MOST_WAITING:
            self._is_full.set()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="change-log")

    async def close(self) -> None:
        """Tell what is left."""
        self._is_full.set()
        if self._telling is not None:
            await self._telling

    async def _tell(self) -> None:
        try:
            while self._waiting:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SUM_S):
                        await self._is_full.wait()
                waiting, self._waiting = self._waiting, []
                self._is_full.clear()
                piece, summary = Slice(), ChangeSummary()
                for before, after, delta in waiting:
                    await piece.go_on(summary.add_in_steps(before, after, delta))
                for change in summary.changes():
                    tell(change)
        finally:
            self._telling = None
