"""Copies objects from one prefix to another: by the store itself where both are in it, else through here.

What passes through here is compared with the checksums that segments and tails have of their parts. What
differs is read once more, as bytes may have changed on their way; what is damaged at the source is copied as
it is, and said.

Blocks. The functions that are returned are safe from any thread. They raise `ObjectNotFound` for an object
that the source does not have, and the stores' other errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final
from urllib.parse import urlsplit

from service.base.errors import CorruptionError
from service.base.threads import Threads
from service.base.types import Buffer
from service.base.world import World
from service.inspect.object_parts import parts_of, proved
from service.remote.stores.boto3_client import s3_client, translated
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import open_store
from service.remote.stores.s3_address import is_s3
from service.remote.stores.s3_encryption import S3Encryption
from service.remote.stores.store import ObjectStore

WINDOW_BYTES: Final = 4 << 20
AT_ONCE: Final = 4
"""Objects whose bytes pass through here at a time."""
_CONNECTIONS: Final = 64
_FORBIDDEN: Final = ("AccessDenied", "403")

CopyObject = Callable[[str, int], None]
"""Copies the object under a key of this size."""


@contextmanager
def through_here(
    source: ObjectStore, target: ObjectStore, threads: Threads, say: Callable[[str], None]
) -> Iterator[CopyObject]:
    """Yield a copier that reads and writes, for two stores that know nothing of each other.

    Few objects at a time, as their bytes are in memory; read by threads of their own, as obstore's client
    must not be called while it asks for the bytes of an upload.
    """
    with threads.pool("reads", AT_ONCE) as readers, threads.pool("copies", AT_ONCE) as writers:

        def windows(key: str, size: int) -> Iterator[Buffer]:
            for start in range(0, size, WINDOW_BYTES):
                length = min(WINDOW_BYTES, size - start)
                yield readers.submit(source.get_range, key, start, length).result()

        def write(key: str, size: int) -> None:
            if not size:
                target.put(key, b"")
                return
            for is_last in (False, True):
                try:
                    parts = readers.submit(parts_of, source, key, size).result()
                    target.put_stream(key, proved(key, windows(key, size), parts), size)
                except CorruptionError as e:
                    if is_last:
                        say(f"copied as it is: {e}")
                else:
                    return
            target.put_stream(key, windows(key, size), size)

        yield lambda key, size: writers.submit(write, key, size).result()


def copier_of(
    from_url: str,
    to_url: str,
    source: ObjectStore,
    target: ObjectStore,
    world: World,
    environ: MutableMapping[str, str],
    *,
    endpoint: str | None,
    region: str | None,
    encryption: S3Encryption | None,
    say: Callable[[str], None],
) -> AbstractContextManager[CopyObject]:
    """Return the best copier for two URLs, to be used within a block: within a bucket, and between buckets of
    S3, no byte comes here. `say` is called with what is damaged."""
    old, new = urlsplit(from_url), urlsplit(to_url)
    if not new.netloc or (old.scheme, old.netloc) != (new.scheme, new.netloc):
        if not (is_s3(from_url) and is_s3(to_url)):
            return through_here(source, target, world.threads, say)
    elif encryption is None:
        root = open_store(f"{new.scheme}://{new.netloc}", world=world, endpoint=endpoint, region=region)
        before, after = old.path.strip("/"), new.path.strip("/")
        return nullcontext(lambda key, size: root.copy(_joined(before, key), _joined(after, key)))
    return nullcontext(_between_buckets(from_url, to_url, environ, endpoint, region, encryption))


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}/{key}" if prefix else key


def _between_buckets(
    from_url: str,
    to_url: str,
    environ: MutableMapping[str, str],
    endpoint: str | None,
    region: str | None,
    encryption: S3Encryption | None,
) -> CopyObject:
    client, target = s3_client(to_url, endpoint, region, environ, _CONNECTIONS)
    parts = urlsplit(from_url)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    headers: dict[str, Any] = {}
    if encryption is not None:
        headers["ServerSideEncryption"] = encryption.algorithm
        if encryption.kms_key_id is not None:
            headers["SSEKMSKeyId"] = encryption.kms_key_id

    def copy(key: str, size: int) -> None:
        call = {
            "Bucket": target.bucket,
            "Key": _joined(target.prefix, key),
            "CopySource": {"Bucket": bucket, "Key": _joined(prefix, key)},
            **headers,
        }
        with translated(key):
            _copy(client, call, key)

    return copy


def _copy(client: Any, call: dict[str, Any], key: str) -> None:
    from botocore.exceptions import ClientError

    try:
        client.copy_object(**call)
    except ClientError as e:
        code = e.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404"):
            raise ObjectNotFound(key) from e
        if code not in _FORBIDDEN:
            raise
        # A bucket's policy may demand conditional writes.
        client.copy_object(**call, IfNoneMatch="*")
