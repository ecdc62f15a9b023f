"""The object store that a read's options name: one client per process and place."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.remote.obstore_store import StoreOptions, open_store
from service.remote.store import ObjectStore
from service.spark.options import ReadOptions

_PATIENCE: Final = StoreOptions(max_retries=10, retry_timeout_s=180.0)
"""A job of hours should outlive a store that is away for a minute or two."""


def open_store_of(options: ReadOptions) -> ObjectStore:
    """The store that the options name; worker processes are reused, and so is their client."""
    return _opened(options.url, options.endpoint, options.region, os.getpid())


@lru_cache(maxsize=8)
def _opened(url: str, endpoint: str | None, region: str | None, _pid: int) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise ConfigError(f"option url: there is no folder {parts.path}")
    return open_store(url, endpoint=endpoint, region=region, options=_PATIENCE)
