"""Object store over obstore: S3 and compatible servers, folders, Google Cloud Storage, Azure.

obstore's calls block the calling thread and release the GIL. Each `open_store` makes clients with connection
pools of their own: uploads and cold reads each open theirs, so that neither waits for the other's
connections.

Reads have a client of their own, with a deadline for the first byte and for each next one. A read that misses
it replaces the client: all connections of the old one may be dead without a sign.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.types import Buffer
from service.base.world import World
from service.remote.stores.answers import (
    is_timeout,
    is_wordless,
    may_be_past_the_end,
    no_credentials,
    response_in,
    store_error,
)
from service.remote.stores.aws_credentials import KeysGiven, asks_metadata_service, credential_source
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.deadline import Deadline
from service.remote.stores.errors import (
    AccountRefused,
    CredentialsExpired,
    CredentialsMissing,
    ObjectNotFound,
    ObjectTruncated,
    PreconditionFailed,
    StoreRefused,
    StoreUnavailable,
)
from service.remote.stores.renewed_credentials import CredentialSource, RenewedCredentials
from service.remote.stores.s3_access import S3Access
from service.remote.stores.s3_address import S3Address, is_s3, s3_address
from service.remote.stores.s3_damage import Keys, refuses_damage
from service.remote.stores.s3_encryption import S3Encryption
from service.remote.stores.store import ObjectInfo, Tagged

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig, S3Credential, S3Store
    from obstore.store import ObjectStore as Client

log = logging.getLogger(__name__)

_REFUSED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)
_TAG_SEPARATOR: Final = "\n"
_OTHER_URLS: Final = ("gs", "az", "azure", "abfs", "abfss", "adl")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Time-outs, retries and parallelism of one client. Times in seconds, sizes in bytes.

    `request_timeout_s` is for one HTTP request, body included, and so bounds the rate of a large one from
    below; `first_byte_timeout_s` is for the first byte of an answer to a read, connecting included, and for
    each pause in its body. obstore retries connection errors, 5xx and throttling by itself within
    `retry_timeout_s`, reads `read_retries` times where that is given; callers that repeat calls themselves
    set its retries to 0.
    """

    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    read_retries: int | None = None
    request_timeout_s: float = 60.0
    max_retries: int = 3
    retry_timeout_s: float = 60.0
    part_bytes: int = 8 << 20
    upload_concurrency: int = 2


def open_store(
    url: str,
    *,
    world: World,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    access: S3Access | None = None,
    encryption: S3Encryption | None = None,
    options: StoreOptions | None = None,
    must_exist: bool = False,
) -> ObstoreStore:
    """Open ``s3://bucket[/prefix]``, ``file:///folder``, ``gs://…`` or ``az://…``.

    `endpoint` is the URL of an S3-compatible server, plain HTTP allowed; buckets are then addressed by path.
    Credentials are those of `access`, else of the chain (see `aws_credentials`), which reads the world's
    environment; keys passed here win. Writes ask S3 for `encryption`; reads need no header. Nothing is sent
    yet: a wrong bucket shows at the first call. A folder is created, unless it `must_exist`, which is for
    whoever only reads. Raises `ConfigError` for a URL that names no store, for a folder that must exist and
    does not, and for an `access` that does not exist.
    """
    options = options or StoreOptions()
    access = access or S3Access()
    parts = urlsplit(url)
    if not access.is_default and not is_s3(url):
        raise ConfigError(f"{url}: aws.… options are for s3:// alone")
    if encryption is not None and not is_s3(url):
        raise ConfigError(f"{url}: only S3 is asked for an encryption")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError(f"{url}: a folder is written as file:///absolute/path")
        from service.remote.stores.folder_store import FolderStore

        return FolderStore(Path(unquote(parts.path)), options, world, must_exist=must_exist)
    if not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url}: not the URL of an object store")
    if is_s3(url):
        address = s3_address(url, endpoint, region, world.environ, access.profile)
        source: CredentialSource | None
        if access_key_id and secret_access_key:
            source = KeysGiven(access_key_id, secret_access_key)
        else:
            source = credential_source(world.environ, access, address.region)
        return S3Bucket(address, source, options, world, encryption)
    if parts.scheme in _OTHER_URLS:
        from obstore.store import from_url

        def make(first_byte_s: float | None) -> Client:
            try:
                return from_url(
                    url,
                    client_options=_client_options(options, first_byte_s),
                    retry_config=_retries(options, first_byte_s),
                )
            except (exceptions.BaseError, ValueError) as e:
                raise ConfigError(f"{url}: {short(e)}") from e

        return ObstoreStore(make, options, url, world)
    raise ConfigError(f"{url}: unknown kind of object store; use s3, file, gs or az")


def _client_options(
    options: StoreOptions, first_byte_s: float | None, *, allow_http: bool = False
) -> ClientConfig:
    config: ClientConfig = {
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        "timeout": timedelta(seconds=options.request_timeout_s),
        "pool_idle_timeout": timedelta(seconds=options.idle_timeout_s),
        "allow_http": allow_http,
    }
    if first_byte_s is not None:
        config["read_timeout"] = timedelta(seconds=first_byte_s)
    return config


def _retries(options: StoreOptions, first_byte_s: float | None) -> RetryConfig:
    retries = options.max_retries
    if first_byte_s is not None and options.read_retries is not None:
        retries = options.read_retries
    return {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=options.retry_timeout_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }


def _s3_client(
    address: S3Address,
    credentials: RenewedCredentials | None,
    options: StoreOptions,
    first_byte_s: float | None,
    encryption: S3Encryption | None,
) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, Any] = {"region": address.region, "virtual_hosted_style_request": not address.by_path}
    # The store should compare what arrives with the digest that the request is signed with.
    config["unsigned_payload"] = False
    if address.endpoint:
        config["endpoint"] = address.endpoint
    else:
        config["checksum_algorithm"] = "SHA256"  # the same digest again, which AWS stores
    if credentials is not None:
        config["credential_provider"] = credentials
    if encryption is not None:
        config["server_side_encryption"] = encryption.algorithm
        if encryption.kms_key_id is not None:
            config["sse_kms_key_id"] = encryption.kms_key_id
    plain = address.endpoint is not None and address.endpoint.startswith("http://")
    try:
        return S3Store(
            address.bucket,
            prefix=address.prefix or None,
            client_options=_client_options(options, first_byte_s, allow_http=plain),
            retry_config=_retries(options, first_byte_s),
            **config,
        )
    except (exceptions.BaseError, ValueError) as e:
        raise ConfigError(f"s3://{address.bucket}: {short(e)}") from e


def short(error: BaseException) -> str:
    """Return obstore's message without its debug dump."""
    return str(error).split("\n\nDebug source", 1)[0].strip()[:1000]


@contextmanager
def _translated(key: str, place: str) -> Iterator[None]:
    """Raise obstore's errors as ours; what the caller's own buffers or iterators raise passes unchanged."""
    try:
        yield
    except FileNotFoundError as e:
        if e.errno is not None:
            raise  # the caller's own file: obstore sets no errno
        raise store_error(key, place, str(e), not_found=True) from e
    except exceptions.BaseError as e:
        raise store_error(key, place, str(e), is_refusal=isinstance(e, _REFUSED)) from e
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # pyo3's, which no module exports
            raise
        # One call that fails, not the end of the node.
        raise StoreUnavailable(f"{place}: {key}: the store's client panicked: {e}") from e


MakeClient = Callable[[float | None], "Client"]
"""Makes a client for reads, with this deadline for the first byte in seconds, or without one for all other
calls."""


class ObstoreStore:
    """`ObjectStore` over obstore's clients. Thread-safe; has no lock of its own."""

    def __init__(self, make_client: MakeClient, options: StoreOptions, place: str, world: World) -> None:
        """`place` names the store in messages."""
        self._make_client = make_client
        self._options = options
        self._place = place
        self._world = world
        self._deadline = Deadline(options.first_byte_timeout_s)
        self._reads = make_client(self._deadline.seconds)
        self._writes: Client | None = None  # made when needed: a reader's store never does

    def verifies_uploads(self) -> bool:
        """Return whether the store itself refuses a damaged body; False where that is not known."""
        return False

    @contextmanager
    def _sending(self, key: str) -> Iterator[Client]:
        """Yield the client for one call other than a read, and translate its errors."""
        client = self._writes
        if client is None:
            # Two threads may both do it; either's will do.
            client = self._writes = self._make_client(None)
        with self._translating(key, client):
            yield client

    @contextmanager
    def _reading(self, key: str) -> Iterator[Client]:
        """Yield the client for one read, which has a deadline."""
        client, began_ms = self._reads, self._world.clock.monotonic_ms()
        try:
            with self._translating(key, client):
                yield client
        except StorageError as e:
            if isinstance(e.__cause__, exceptions.BaseError) and is_timeout(str(e.__cause__)):
                self._replace(client, self._deadline.missed())
            raise
        if self._deadline.answered((self._world.clock.monotonic_ms() - began_ms) / 1000):
            self._replace(client, self._deadline.seconds)

    def _translating(self, key: str, client: Client) -> AbstractContextManager[None]:
        return _translated(key, self._place)

    def _replace(self, client: Client, first_byte_s: float) -> None:
        # Many threads may miss the deadline with one client: it is replaced once.
        if self._reads is client:
            self._reads = self._make_client(first_byte_s)

    def put(self, key: str, data: Buffer) -> None:
        with self._sending(key) as client:
            obstore.put(client, key, data, use_multipart=False)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        counted = _counted(key, parts, size)
        if size <= self._options.part_bytes:
            self.put(key, b"".join(counted))
            return
        # obstore takes the parts on a thread that drives its runtime, where no other call of obstore may be
        # made: parts that are read from a store, as those of a rewrite, are made on a thread of their own.
        maker = self._world.threads.pool("upload-parts", 1)
        watched = _Watched(counted, maker)
        try:
            with self._sending(key) as client:
                # Aborts the upload when the store or the iterator raises.
                obstore.put(
                    client,
                    key,
                    watched,
                    use_multipart=True,
                    chunk_size=self._options.part_bytes,
                    max_concurrency=self._options.upload_concurrency,
                )
        except StorageError as e:
            if watched.failure is None or watched.failure is e:
                raise
            # The parts failed first, and then the store did not confirm the abort.
            watched.failure.add_note(f"the upload may not be aborted: {e}")
            raise watched.failure from None
        finally:
            maker.shutdown()

    def get(self, key: str, *, max_size: int) -> bytes:
        return self.get_tagged(key, max_size=max_size).data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        try:
            with self._reading(key) as client:
                data = memoryview(obstore.get_range(client, key, start=start, length=length))
        except StoreUnavailable as e:
            # Not every store reports a range past the end; a store that is unavailable is not asked twice.
            if _may_be_past_the_end(e) and self.head(key).size <= start:
                raise ObjectTruncated(f"{key}: ends before byte {start}") from None
            raise
        if len(data) != length:
            raise ObjectTruncated(f"{key}: {len(data)} bytes at {start}, {length} asked for")
        return data

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        try:
            with self._reading(key) as client:
                result = obstore.get(client, key, options={"range": {"suffix": length}})
                size = result.meta["size"]
                return bytes(result.buffer()), size
        except (StoreUnavailable, StoreRefused) as e:
            # An empty object has no ranges, and Azure has no suffix ranges.
            if not _may_be_past_the_end(e):
                raise
            size = self.head(key).size
            if size == 0:
                return b"", 0
            length = min(length, size)
            return bytes(self.get_range(key, size - length, length)), size

    def head(self, key: str) -> ObjectInfo:
        try:
            with self._reading(key) as client:
                return _info(obstore.head(client, key))
        except (StoreUnavailable, StoreRefused) as e:
            if isinstance(e.__cause__, exceptions.BaseError) and is_wordless(str(e.__cause__)):
                # An answer to HEAD has no body with the reason; an answer to GET has.
                with self._reading(key) as client:
                    obstore.get_range(client, key, start=0, length=1)
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._sending(prefix or "/") as client:
            for page in obstore.list(client, prefix or None):
                for meta in page:
                    yield _info(meta)

    def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        try:
            with self._sending(keys[0]) as client:
                obstore.delete(client, list(keys))
        except ObjectNotFound:
            # Some stores stop at the first missing key.
            for key in keys:
                self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            with self._sending(key) as client:
                obstore.delete(client, key)
        except ObjectNotFound:
            return

    def copy(self, key: str, to: str) -> None:
        """Copy one object within the store, whose bytes do not come here. Raises `ObjectNotFound`."""
        with self._sending(key) as client:
            obstore.copy(client, key, to)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            with self._sending(key) as client:
                obstore.put(client, key, data, mode="create", use_multipart=False)
        except StoreUnavailable as e:
            if isinstance(e.__cause__, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
                return False
            raise
        return True

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        with self._reading(key) as client:
            result = obstore.get(client, key)
            size = result.meta["size"]
            if size > max_size:
                raise CorruptionError(f"{key}: {size} bytes, at most {max_size} expected")
            return Tagged(bytes(result.buffer()), tag_of(result.meta))

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        e_tag, _, version = tag.partition(_TAG_SEPARATOR)
        mode: UpdateVersion = {"e_tag": e_tag} if e_tag else {}
        if version:
            mode["version"] = version
        try:
            with self._sending(key) as client:
                obstore.put(client, key, data, mode=mode, use_multipart=False)
        except ObjectNotFound as e:
            raise PreconditionFailed(f"{key}: no longer exists") from e
        except StorageError as e:
            if isinstance(e.__cause__, exceptions.PreconditionError) or _is_conflict(e):
                raise PreconditionFailed(f"{key}: has changed since") from e
            raise


class S3Bucket(ObstoreStore):
    """A bucket, or a prefix of one. Credentials that it calls expired are fetched again for the next call."""

    def __init__(
        self,
        address: S3Address,
        source: CredentialSource | None,
        options: StoreOptions,
        world: World,
        encryption: S3Encryption | None = None,
    ) -> None:
        """Leave finding credentials to obstore where `source` is None."""
        self._encryption = encryption
        self._credentials = (
            RenewedCredentials(source, world.clock, world.threads) if source is not None else None
        )
        self._address = address
        self._verifies = True if address.endpoint is None else None
        """AWS does; other stores are probed once, by `verifies_uploads`."""
        self._has_answered = False
        """True once a call was answered: then there are credentials, and a failing metadata service will
        recover."""
        self._has_no_source = (
            source is None
            and asks_metadata_service(world.environ)
            and world.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        )
        where = f" at {address.endpoint}" if address.endpoint else ""

        def make(first_byte_s: float | None) -> Client:
            return _s3_client(address, self._credentials, options, first_byte_s, encryption)

        super().__init__(make, options, f"s3://{address.bucket}{where}", world)

    @contextmanager
    def _translating(self, key: str, client: Client) -> Iterator[None]:
        if self._has_no_source:
            raise AccountRefused(f"{no_credentials(self._place, 'AWS_EC2_METADATA_DISABLED is set')}")
        used = self._credentials() if self._credentials is not None else None
        try:
            with _translated(key, self._place):
                yield
        except CredentialsExpired as e:
            self._renew(used, client, e)
            raise
        except CredentialsMissing as e:
            if self._has_answered:
                raise StoreUnavailable(str(e)) from e
            raise
        except StoreUnavailable:
            raise
        except StorageError:
            self._has_answered = True
            raise
        self._has_answered = True

    def verifies_uploads(self) -> bool:
        if self._verifies is None:
            # Two threads may both ask; either's answer will do.
            self._verifies = self._refuses_damage()
        return bool(self._verifies)

    def _refuses_damage(self) -> bool | None:
        """Probe the store; return None where that has to be repeated."""
        if self._credentials is None:
            return False  # only obstore has them
        used = self._credentials()
        keys = Keys(used["access_key_id"], used["secret_access_key"], used.get("token"))
        key = f"{PROBE_PREFIX}/{self._world.new_uuid()}"
        headers = self._encryption.headers if self._encryption is not None else ()
        found = refuses_damage(self._address, keys, key, self._world.clock.now_ms(), headers)
        try:
            self.delete([key])
        except StorageError as e:
            log.warning("%s: a probe object may be left there, as its deletion failed: %s", self._place, e)
        return found

    def _renew(self, used: S3Credential | None, client: Client, expired: CredentialsExpired) -> None:
        """Replace clients that used expired credentials. Raises what fetching new ones raises."""
        if self._credentials is not None:
            source = self._credentials.source
            if not self._credentials.renew(used) and source.is_fixed:
                raise AccountRefused(f"{expired}; there are no newer ones in {source.name}") from expired
        if client in (self._writes, self._reads):
            # Two threads may both do it; either's will do.
            self._writes = None
            self._reads = self._make_client(self._deadline.seconds)


def _may_be_past_the_end(error: StorageError) -> bool:
    cause = error.__cause__
    return isinstance(cause, exceptions.BaseError) and may_be_past_the_end(str(cause))


class _Watched:
    """Passes on `parts`, made by `maker`, and keeps their error: obstore lets a failing abort hide it."""

    def __init__(self, parts: Iterator[Buffer], maker: Executor) -> None:
        self._parts, self._maker = parts, maker
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Buffer]:
        return self

    def __next__(self) -> Buffer:
        try:
            part = self._maker.submit(next, self._parts, None).result()
        except Exception as e:
            self.failure = e
            raise
        if part is None:
            raise StopIteration
        return part


def _counted(key: str, parts: Iterable[Buffer], size: int) -> Iterator[Buffer]:
    """Yield the parts, and raise unless they end at `size`."""
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


def tag_of(meta: ObjectMeta) -> str:
    """Return the tag of the object's version: S3 and Azure compare the ETag, Google the generation."""
    return f"{meta['e_tag'] or ''}{_TAG_SEPARATOR}{meta['version'] or ''}"


def _is_conflict(error: StorageError) -> bool:
    """Return whether S3 answered 409 to a conditional write: another one was in flight at that moment."""
    cause = error.__cause__
    return isinstance(cause, exceptions.BaseError) and response_in(str(cause)).status in (409, 412)
