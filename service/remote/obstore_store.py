"""The object store behind obstore: S3 and whatever speaks it, folders, Google Cloud Storage, Azure.

obstore's calls block the calling thread and release the GIL. One `open_store` makes one client with a
connection pool of its own: uploads and cold reads each open theirs, so that neither waits for the other's
connections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.files import fsync_dir
from service.base.types import Buffer
from service.remote.aws_credentials import credential_provider
from service.remote.errors import ObjectNotFound, ObjectTruncated, StoreRefused, StoreUnavailable
from service.remote.s3_address import S3Address, s3_address
from service.remote.store import ObjectInfo

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, LocalStore, RetryConfig, S3Store
    from obstore.store import ObjectStore as Client

_REFUSED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NO_OBJECT: Final = ("NoSuchKey", "BlobNotFound")
_OTHER_URLS: Final = ("gs", "az", "azure", "abfs", "abfss", "adl")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How patient and how parallel one client is. Times in seconds, sizes in bytes.

    `request_timeout_s` is for one HTTP request, body included; obstore retries connection errors, 5xx and
    throttling by itself within `retry_timeout_s`, callers retry beyond that.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0
    max_retries: int = 3
    retry_timeout_s: float = 60.0
    part_bytes: int = 8 << 20
    upload_concurrency: int = 2


def open_store(
    url: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    options: StoreOptions | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ObstoreStore:
    """Open ``s3://bucket[/prefix]``, ``file:///folder``, ``gs://…`` or ``az://…``.

    `endpoint` is the URL of an S3-compatible server, plain HTTP allowed; buckets are then addressed by path.
    Credentials: see `aws_credentials`; keys given here win. Nothing is sent yet: a wrong bucket shows on
    the first call. Raises `ConfigError` for a URL that names no store.
    """
    options = options or StoreOptions()
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError(f"{url}: a folder is written as file:///absolute/path")
        return FolderStore(Path(unquote(parts.path)), options)
    if not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url}: not the URL of an object store")
    if parts.scheme == "s3":
        address = s3_address(url, endpoint, region, environ)
        static = (access_key_id, secret_access_key)
        return ObstoreStore(_s3_client(address, static, options, environ), options)
    if parts.scheme in _OTHER_URLS:
        from obstore.store import from_url

        try:
            other = from_url(url, client_options=_client_options(options), retry_config=_retries(options))
        except (exceptions.BaseError, ValueError) as e:
            raise ConfigError(f"{url}: {_short(e)}") from e
        return ObstoreStore(other, options)
    raise ConfigError(f"{url}: no such kind of object store; there are s3, file, gs and az")


def _client_options(options: StoreOptions, *, allow_http: bool = False) -> ClientConfig:
    return {
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        "timeout": timedelta(seconds=options.request_timeout_s),
        "allow_http": allow_http,
    }


def _retries(options: StoreOptions) -> RetryConfig:
    return {
        "max_retries": options.max_retries,
        "retry_timeout": timedelta(seconds=options.retry_timeout_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }


def _s3_client(
    address: S3Address,
    static: tuple[str | None, str | None],
    options: StoreOptions,
    environ: Mapping[str, str],
) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, Any] = {"region": address.region, "virtual_hosted_style_request": not address.by_path}
    if address.endpoint:
        config["endpoint"] = address.endpoint
    if all(static):
        config["access_key_id"], config["secret_access_key"] = static
    else:
        provider = credential_provider(environ)
        if provider is not None:
            config["credential_provider"] = provider
    plain = address.endpoint is not None and address.endpoint.startswith("http://")
    try:
        return S3Store(
            address.bucket,
            prefix=address.prefix or None,
            client_options=_client_options(options, allow_http=plain),
            retry_config=_retries(options),
            **config,
        )
    except (exceptions.BaseError, ValueError) as e:
        raise ConfigError(f"s3://{address.bucket}: {_short(e)}") from e


def _short(error: BaseException) -> str:
    """obstore's message without its debug dump."""
    return str(error).split("\n\nDebug source", 1)[0].strip()[:1000]


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """obstore's errors as ours; what the caller's own buffers or iterators raise passes unchanged."""
    try:
        yield
    except FileNotFoundError as e:
        if e.errno is not None:
            raise  # the caller's own file: obstore sets no errno
        code = _CODE.search(str(e))
        if code is not None and code[1] == "NoSuchUpload":
            # Somebody aborted it, or an abort was answered on its second try only: the next upload is new.
            raise StoreUnavailable(f"{key}: {_short(e)}") from e
        if code is not None and code[1] not in _NO_OBJECT:
            # A 404 about something else than the object: no such bucket, no such user.
            raise StoreRefused(f"{key}: {_short(e)}") from e
        raise ObjectNotFound(key) from e
    except _REFUSED as e:
        raise StoreRefused(f"{key}: {_short(e)}") from e
    except exceptions.BaseError as e:
        if "NoSuchBucket" in str(e) or "InvalidAccessKeyId" in str(e):
            raise StoreRefused(f"{key}: {_short(e)}") from e
        raise StoreUnavailable(f"{key}: {_short(e)}") from e


class ObstoreStore:
    """`ObjectStore` over one obstore client. Thread-safe; holds no lock of its own."""

    def __init__(self, client: Client, options: StoreOptions) -> None:
        self._client = client
        self._options = options

    def put(self, key: str, data: Buffer) -> None:
        with _translated(key):
            obstore.put(self._client, key, data, use_multipart=False)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        counted = _counted(key, parts, size)
        if size <= self._options.part_bytes:
            self.put(key, b"".join(counted))
            return
        watched = _Watched(counted)
        try:
            with _translated(key):
                # Aborts the upload when the store or the iterator raises.
                obstore.put(
                    self._client,
                    key,
                    watched,
                    use_multipart=True,
                    chunk_size=self._options.part_bytes,
                    max_concurrency=self._options.upload_concurrency,
                )
        except StorageError as e:
            if watched.failure is None or watched.failure is e:
                raise
            # The parts broke off first, and then the store did not confirm the abort.
            watched.failure.add_note(f"the upload may not be aborted: {e}")
            raise watched.failure from None

    def get(self, key: str, *, max_size: int) -> bytes:
        with _translated(key):
            result = obstore.get(self._client, key)
            size = result.meta["size"]
            if size > max_size:
                raise CorruptionError(f"{key}: {size} bytes, at most {max_size} expected")
            return bytes(result.buffer())

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        try:
            with _translated(key):
                data = memoryview(obstore.get_range(self._client, key, start=start, length=length))
        except StoreUnavailable:
            # A range that begins past the end is answered with an error that looks like any other.
            if self.head(key).size <= start:
                raise ObjectTruncated(f"{key}: ends before byte {start}") from None
            raise
        if len(data) != length:
            raise ObjectTruncated(f"{key}: {len(data)} bytes at {start}, {length} asked for")
        return data

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        try:
            with _translated(key):
                result = obstore.get(self._client, key, options={"range": {"suffix": length}})
                size = result.meta["size"]
                return bytes(result.buffer()), size
        except (StoreUnavailable, StoreRefused):
            # An empty object has no range at all, and Azure knows no suffix ranges.
            size = self.head(key).size
            if size == 0:
                return b"", 0
            length = min(length, size)
            return bytes(self.get_range(key, size - length, length)), size

    def head(self, key: str) -> ObjectInfo:
        with _translated(key):
            return _info(obstore.head(self._client, key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with _translated(prefix or "/"):
            for page in obstore.list(self._client, prefix or None):
                for meta in page:
                    yield _info(meta)

    def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        try:
            with _translated(keys[0]):
                obstore.delete(self._client, list(keys))
        except ObjectNotFound:
            # Some stores stop at the first key that is not there.
            for key in keys:
                self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            with _translated(key):
                obstore.delete(self._client, key)
        except ObjectNotFound:
            return

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            with _translated(key):
                obstore.put(self._client, key, data, mode="create", use_multipart=False)
        except StoreUnavailable as e:
            if isinstance(e.__cause__, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
                return False
            raise
        return True


class FolderStore(ObstoreStore):
    """A folder as an object store: made when it is not there, durable when a put returns, listed in order."""

    def __init__(self, root: Path, options: StoreOptions) -> None:
        from obstore.store import LocalStore

        try:
            client: LocalStore = LocalStore(root, mkdir=True)
        except (exceptions.BaseError, OSError, ValueError) as e:
            raise ConfigError(f"{root}: {_short(e)}") from e
        super().__init__(client, options)
        self._root = root

    def put(self, key: str, data: Buffer) -> None:
        super().put(key, data)
        self._sync(key)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        super().put_stream(key, parts, size)
        if size > self._options.part_bytes:
            self._sync(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        created = super().put_if_absent(key, data)
        if created:
            self._sync(key)
        return created

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(sorted(super().list(prefix), key=lambda info: info.key.encode()))

    def _sync(self, key: str) -> None:
        """Make the file and the names on its path durable: local segments are deleted trusting that."""
        path = self._root / key
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            for folder in path.parents:
                fsync_dir(folder)
                if folder == self._root:
                    break
        except OSError as e:
            raise StoreUnavailable(f"{key}: {e}") from e


class _Watched:
    """Hands on what `parts` gives, and keeps what it raises: obstore lets a failing abort hide that."""

    def __init__(self, parts: Iterator[Buffer]) -> None:
        self._parts = parts
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Buffer]:
        return self

    def __next__(self) -> Buffer:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except Exception as e:
            self.failure = e
            raise


def _counted(key: str, parts: Iterable[Buffer], size: int) -> Iterator[Buffer]:
    """The parts, and an error instead of an end that is not at `size`."""
    given = 0
    for part in parts:
        given += len(part)
        if given > size:
            break
        if len(part):
            yield part
    if given != size:
        raise CorruptionError(f"{key}: {given} bytes or more given, {size} announced")


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(
        key=meta["path"],
        size=meta["size"],
        last_modified_ms=int(meta["last_modified"].timestamp() * 1000),
        etag=meta["e_tag"] or "",
    )
