"""Commits of many partitions in few calls: commits that arrive during a call are sent with the next one.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from service.base.errors import RequestError, StorageError
from service.remote.catalog import Catalog, CatalogCommit, CatalogResult

MAX_BATCH: Final = 500


class CommitQueue:
    """Sends single commits to the catalog in batches, one call at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._waiting: list[tuple[CatalogCommit, asyncio.Future[CatalogResult]]] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, commit: CatalogCommit) -> CatalogResult:
        """Return the catalog's answer. Raises `StorageError` when the outcome is unknown."""
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
                # Every commit of the batch gets the error. An error that is not the quorum's is a bug and
                # ends the node there.
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(_outcome_unknown(e))
                if isinstance(e, asyncio.CancelledError):
                    raise

    async def close(self) -> None:
        """Cancel the call in flight; the catalog tells its outcome after the next start."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        for _, answer in self._waiting:
            answer.cancel()


def _outcome_unknown(error: BaseException) -> BaseException:
    if isinstance(error, (RequestError, TimeoutError, asyncio.CancelledError)):
        return StorageError(f"the catalog did not answer: {error or type(error).__name__}")
    return error
