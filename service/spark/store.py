"""The object store that a read's options name: one client per process, URL and credentials."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.base.world import World, system_world
from service.remote.stores.retrying_store import open_retrying_store
from service.remote.stores.s3_access import S3Access
from service.remote.stores.s3_address import is_s3
from service.remote.stores.s3_encryption import S3Encryption
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions


def open_store_of(options: ReadOptions) -> ObjectStore:
    """Open the store that the options name, or return the client that this process has of it already."""
    return _opened(
        options.url, options.endpoint, options.region, options.access, options.store_timeout_s, os.getpid()
    )


def open_to_write(options: ReadOptions, encryption: S3Encryption | None) -> ObjectStore:
    """Open the store that the options name, to be written to, or return the client that this process has of
    it already. Writes ask S3 for `encryption`."""
    return _opened(
        options.url,
        options.endpoint,
        options.region,
        options.access,
        options.store_timeout_s,
        os.getpid(),
        encryption,
    )


def open_beside(url: str, options: ReadOptions) -> ObjectStore:
    """Open the store of another URL, to be written to, with the endpoint, region and credentials of the
    options."""
    access = options.access if is_s3(url) else S3Access()
    return open_retrying_store(
        url,
        world=process_world(os.getpid()),
        endpoint=options.endpoint,
        region=options.region,
        access=access,
        timeout_s=options.store_timeout_s,
    )


@lru_cache(maxsize=8)
def _opened(
    url: str,
    endpoint: str | None,
    region: str | None,
    access: S3Access,
    timeout_s: float,
    pid: int,
    encryption: S3Encryption | None = None,
) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise ConfigError(f"option url: there is no folder {parts.path}")
    return open_retrying_store(
        url,
        world=process_world(pid),
        endpoint=endpoint,
        region=region,
        access=access,
        timeout_s=timeout_s,
        must_exist=True,
        encryption=encryption,
    )


@lru_cache(maxsize=1)
def process_world(_pid: int) -> World:
    """Return the `World` of the process with this id: a forked process has not sent its parent's requests."""
    return system_world()
