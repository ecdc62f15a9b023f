"""Commits of many partitions in few calls: whatever arrives while one call is under way goes with the next.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from service.base.errors import RequestError, StorageError
from service.remote.catalog import Catalog, CatalogCommit, CatalogResult

MAX_BATCH: Final = 500


class CommitQueue:
    """Hands single commits to the catalog in batches, one call at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._waiting: list[tuple[CatalogCommit, asyncio.Future[CatalogResult]]] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, commit: CatalogCommit) -> CatalogResult:
        """The catalog's answer. `StorageError` when the outcome is not known."""
        answer: asyncio.Future[CatalogResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((commit, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="tiering-commits")
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            try:
                results = await self._catalog.commit([commit for commit, _ in batch])
                for (_, answer), result in zip(batch, results, strict=True):
                    if not answer.done():
                        answer.set_result(result)
            except BaseException as e:
                # Everybody in the batch learns of it; what is no failure of the quorum's ends the node there.
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(_outcome_unknown(e))
                if isinstance(e, asyncio.CancelledError):
                    raise

    async def close(self) -> None:
        """Give up what is under way; its outcome is found in the catalog after the next start."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        for _, answer in self._waiting:
            answer.cancel()


def _outcome_unknown(error: BaseException) -> BaseException:
    if isinstance(error, (RequestError, TimeoutError, asyncio.CancelledError)):
        return StorageError(f"the catalog did not answer: {error or type(error).__name__}")
    return error
