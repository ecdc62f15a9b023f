"""The backends under contract, each opened on an empty prefix."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from service.base.threads import SystemThreads
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.obstore_store import StoreOptions, open_store
from service.remote.stores.proven_uploads import ProvenUploads
from service.remote.stores.store import ObjectStore
from tests.support.stores import ACCESS, SECRET, s3_client
from tests.support.world import WORLD

REGION = "us-east-1"
PART_BYTES = 5 << 20
"""S3's smallest part: objects of a few parts stay cheap to make."""


class Backend(NamedTuple):
    """A store, and the multipart uploads that nobody finished or aborted."""

    name: str
    store: ObjectStore
    unfinished_uploads: Callable[[], list[str]]


def options() -> StoreOptions:
    return StoreOptions(max_retries=1, retry_timeout_s=5, request_timeout_s=20, part_bytes=PART_BYTES)


def memory_backend() -> Backend:
    return Backend("memory", MemoryStore(SystemThreads()), list)


def compared_backend() -> Backend:
    return Backend("compared", ProvenUploads(MemoryStore(SystemThreads()), lambda: False), list)


def folder_backend(root: Path) -> Backend:
    def leftovers() -> list[str]:
        return [str(path) for path in root.rglob("*#*")]

    return Backend("folder", open_store(root.as_uri(), options=options(), world=WORLD), leftovers)


def s3_backend(name: str, endpoint: str) -> Backend:
    bucket = f"firn-{uuid.uuid4()}"
    client = s3_client(endpoint)
    client.create_bucket(Bucket=bucket)

    def unfinished() -> list[str]:
        return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    store = open_store(
        f"s3://{bucket}/some/prefix",
        endpoint=endpoint,
        region=REGION,
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        options=options(),
        world=WORLD,
    )
    return Backend(name, store, unfinished)
