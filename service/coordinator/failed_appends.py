"""Appends of one shard that fail: they are counted, and the first of several is logged."""

from __future__ import annotations

import logging

from service.base.errors import RequestError, StorageError
from service.coordinator.errors import client_error
from service.coordinator.metrics import RuntimeMetrics

_log = logging.getLogger(__name__)


class FailedAppends:
    """Appends of one shard that fail: counted, and logged once until one succeeds, as clients retry."""

    __slots__ = ("_metrics", "_name", "has_failed")

    def __init__(self, name: str, metrics: RuntimeMetrics) -> None:
        self._name = name
        self._metrics = metrics
        self.has_failed = False

    def note(self, error: Exception) -> RequestError:
        """Count and log a failed batch; return the error for the clients of its decisions."""
        self._metrics.failed_batches += 1
        self.log(error)
        return client_error(error)

    def log(self, error: Exception) -> None:
        """Log the first of several failures."""
        if not self.has_failed:
            is_bug = not isinstance(error, RequestError | StorageError)
            _log.error("appends to %s fail: %s", self._name, error, exc_info=error if is_bug else None)
        self.has_failed = True
