"""Check that a store supports Firn, with Firn's own requests: `firn bucket check`.

It writes only below ``probe/<uuid>``, a unique name, and removes everything again. A step that the store
refuses names the permission that it needs; steps that depend on it are skipped. What a node can do without is
advice, not a failure, except the lifecycle rule that ends unfinished uploads: nothing else does (ADR 37).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from service.base.errors import CorruptionError, FirnError, StorageError
from service.base.world import World
from service.inspect.bucket_policy import OF_LISTING, OF_UPLOADS
from service.inspect.bucket_settings import check_lifecycle, settings_advice, unread_upload_rule
from service.inspect.step_result import Outcome, StepResult
from service.remote.format.keys import DATA_PREFIX
from service.remote.stores.boto3_client import translated
from service.remote.stores.conditional import PROBE_PREFIX, broken_promise
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import ObstoreStore
from service.remote.stores.s3_address import S3Address
from service.remote.stores.s3_encryption import S3Encryption

PART_BYTES: Final = 5 << 20
"""S3's smallest part of an upload: `open_store` must have been given the same."""
_WIDEST_SKEW_MS: Final = 15 * 60_000
"""With a larger skew a node expires nothing, and AWS refuses requests."""
_NOTABLE_SKEW_MS: Final = 60_000
_SMALL: Final = b"firn bucket check"
_UNSORTED: Final = ("2/x", "10/x", "1/x", "1-x", "a", "B", "0")
"""Names whose order in bytes differs from that by folders, numbers or letters."""


class CheckStep(NamedTuple):
    """One step of the check. `run` returns what is wrong, or None; a refusal: `permission` is missing.

    `on` are the steps that it depends on; `is_for_node` is False for what only `firn sweep` needs.
    """

    what: str
    permission: str
    run: Callable[[], str | None]
    on: tuple[str, ...] = ()
    is_for_node: bool = True


@dataclass(slots=True)
class Unfinished:
    """Multipart uploads that the check begins and aborts, through boto3's `client`: obstore cannot list them.

    Keys are those below the prefix. Errors are those of a store (`translated`).
    """

    client: Any
    address: S3Address
    encryption: S3Encryption | None = None
    _ids: dict[str, str] = field(default_factory=dict)

    @property
    def are_begun(self) -> bool:
        return bool(self._ids)

    def begin(self, key: str) -> None:
        options: dict[str, str] = {}
        if self.encryption is not None:
            options["ServerSideEncryption"] = self.encryption.algorithm
            if self.encryption.kms_key_id is not None:
                options["SSEKMSKeyId"] = self.encryption.kms_key_id
        with translated(key):
            begun = self.client.create_multipart_upload(
                Bucket=self.address.bucket, Key=self.full(key), **options
            )
        self._ids[key] = begun["UploadId"]

    def are_listed(self, key: str) -> bool:
        """Return whether the bucket's listing has an unfinished upload of `key`."""
        with translated(key):
            page = self.client.list_multipart_uploads(
                Bucket=self.address.bucket, Prefix=self.full(PROBE_PREFIX)
            )
        return any(upload["Key"] == self.full(key) for upload in page.get("Uploads", ()))

    def abort(self, key: str) -> None:
        """Abort the upload that `begin` began for `key`; `KeyError` where it began none."""
        with translated(key):
            self.client.abort_multipart_upload(
                Bucket=self.address.bucket, Key=self.full(key), UploadId=self._ids[key]
            )
        del self._ids[key]

    def abort_all(self) -> None:
        """Abort the uploads that were begun and not aborted yet."""
        for key in tuple(self._ids):
            self.abort(key)

    def full(self, key: str) -> str:
        """Return the key in the bucket of `key`, which is relative to the prefix."""
        return f"{self.address.prefix}/{key}" if self.address.prefix else key


class BucketCheck:
    """The check of one store. `unfinished` accesses its multipart uploads, in S3.

    `has_unread_rules`: the store may have lifecycle rules, which are not read.
    """

    def __init__(
        self,
        store: ObstoreStore,
        world: World,
        unfinished: Unfinished | None,
        *,
        has_unread_rules: bool = False,
    ) -> None:
        self._store = store
        self._world = world
        self._unfinished = unfinished
        self._has_unread_rules = has_unread_rules
        self._home = f"{PROBE_PREFIX}/{world.new_uuid()}"
        self._written: set[str] = set()

    def run(self) -> Iterator[StepResult]:
        """Yield the findings as they come, and remove everything written at the end, even after an error."""
        fine: set[str] = set()
        try:
            exists = yield from self._try_all(fine)
        finally:
            left = self._remove()
        if left is not None:
            yield left
        if not exists:
            return
        yield self._checksums(fine)
        if self._unfinished is not None:
            client, address = self._unfinished.client, self._unfinished.address
            yield from settings_advice(client, address.bucket)
            yield from check_lifecycle(client, address.bucket, self._unfinished.full(f"{DATA_PREFIX}/"))
        elif self._has_unread_rules:
            yield unread_upload_rule()

    def _try_all(self, fine: set[str]) -> Generator[StepResult, None, bool]:
        """Run the steps and add those that succeed to `fine`. False: the bucket cannot be accessed at all."""
        for step in self._steps():
            if absent := [one for one in step.on if one not in fine]:
                yield StepResult(step.what, Outcome.LEFT_OUT, f"as it needs: {', '.join(absent)}")
                continue
            found = run_step(step)
            if found.outcome is Outcome.FINE:
                fine.add(step.what)
            yield found
            if found.outcome is Outcome.FAILED and not found.missing and not fine:
                return False
        return True

    def _steps(self) -> Sequence[CheckStep]:
        write, read = "write an object", "read it, whole and in ranges"
        begin = "begin an upload in parts"
        steps = [
            CheckStep("list", OF_LISTING, self._list),
            CheckStep(write, "s3:PutObject", self._write),
            CheckStep(read, "s3:GetObject", self._read, (write,)),
            CheckStep("tell a missing object from a forbidden one", OF_LISTING, self._miss, (read,)),
            CheckStep("clock", "s3:GetObject", self._clock, (write, read)),
            CheckStep(
                "conditional writes (If-None-Match, If-Match)", "s3:PutObject", self._race, (write, read)
            ),
            CheckStep("upload in parts", "s3:PutObject", self._upload, (write, read)),
            CheckStep(
                "list in order of bytes, what was just written too", OF_LISTING, self._order, (write, "list")
            ),
            CheckStep("delete", "s3:DeleteObject", self._delete, (write,)),
        ]
        if (uploads := self._unfinished) is not None:
            key = f"{self._home}/unfinished"
            steps += [
                CheckStep(begin, "s3:PutObject", lambda: uploads.begin(key), (write,)),
                CheckStep(
                    "find unfinished uploads",
                    OF_UPLOADS,
                    lambda: self._find(uploads, key),
                    (begin,),
                    is_for_node=False,
                ),
                CheckStep(
                    "end unfinished uploads", "s3:AbortMultipartUpload", lambda: uploads.abort(key), (begin,)
                ),
            ]
        return steps

    def _key(self, name: str) -> str:
        """Return the key of a probe that is removed at the end."""
        key = f"{self._home}/{name}"
        self._written.add(key)
        return key

    def _list(self) -> str | None:
        next(self._store.list(PROBE_PREFIX), None)
        return None

    def _write(self) -> str | None:
        self._store.put(self._key("small"), _SMALL)
        return None

    def _read(self) -> str | None:
        key = self._key("small")
        whole = self._store.get(key, max_size=1024)
        middle = bytes(self._store.get_range(key, 5, 6))
        end, size = self._store.get_suffix(key, 5)
        if (whole, middle, end, size) == (_SMALL, _SMALL[5:11], _SMALL[-5:], len(_SMALL)):
            return None
        return "the bytes read differ from the bytes written"

    def _miss(self) -> str | None:
        try:
            self._store.get(f"{self._home}/missing", max_size=1024)
        except ObjectNotFound:
            return None
        return "an object exists that was never written"

    def _clock(self) -> str | None:
        skew_ms = self._world.clock.now_ms() - self._store.head(self._key("small")).last_modified_ms
        if abs(skew_ms) < _NOTABLE_SKEW_MS:
            return None
        side = "ahead of" if skew_ms > 0 else "behind"
        words = f"this machine is {abs(skew_ms) // 1000} s {side} the store"
        if abs(skew_ms) >= _WIDEST_SKEW_MS:
            return f"{words}: nothing expires by its age, and AWS refuses requests"
        return f"{words}: set the clock"

    def _race(self) -> str | None:
        return broken_promise(self._store, self._key("conditional"))

    def _upload(self) -> str | None:
        key, size = self._key("parts"), PART_BYTES + len(_SMALL)
        self._store.put_stream(key, (bytes(PART_BYTES), _SMALL), size)
        end, found = self._store.get_suffix(key, len(_SMALL))
        return None if (end, found) == (_SMALL, size) else f"{found} bytes were stored, {size} were sent"

    def _order(self) -> str | None:
        for name in _UNSORTED:
            self._store.put(self._key(f"order/{name}"), _SMALL)
        listed = [one.key for one in self._store.list(f"{self._home}/order")]
        expected = sorted((f"{self._home}/order/{name}" for name in _UNSORTED), key=str.encode)
        if listed == expected:
            return None
        if sorted(listed, key=str.encode) != expected:
            return f"{len(listed)} of {len(expected)} objects just written are listed"
        return f"the order is {', '.join(key.rpartition('order/')[2] for key in listed)}"

    def _delete(self) -> str | None:
        key = self._key("small")
        self._store.delete([key, f"{self._home}/missing"])
        self._written.discard(key)
        return None

    @staticmethod
    def _find(uploads: Unfinished, key: str) -> str | None:
        return None if uploads.are_listed(key) else "an upload just begun is not listed"

    def _checksums(self, fine: set[str]) -> StepResult:
        what = "compare what arrives with its checksum"
        if "delete" not in fine:
            return StepResult(what, Outcome.LEFT_OUT, "as it needs: delete")
        try:
            if self._store.verifies_uploads():
                return StepResult(what, Outcome.FINE)
        except FirnError as e:
            return StepResult(what, Outcome.FAILED, str(e))
        why = "it does not, or may not: every upload is read back and compared before it counts"
        return StepResult(what, Outcome.ADVICE, why)

    def _remove(self) -> StepResult | None:
        """Remove what was written. Returns None unless something is left; a step has reported why."""
        left = sorted(self._written)
        try:
            self._store.delete(left)
            if self._unfinished is not None:
                self._unfinished.abort_all()
        except FirnError as e:
            is_upload = self._unfinished is not None and self._unfinished.are_begun
            if is_upload or any(self._is_there(key) for key in left):
                return StepResult(
                    "remove what was written", Outcome.FAILED, f"{self._home} is left behind: {e}"
                )
        return None

    def _is_there(self, key: str) -> bool:
        try:
            self._store.head(key)
        except ObjectNotFound:
            return False
        except FirnError:
            return True
        return True


def run_step(step: CheckStep) -> StepResult:
    """Run one step; errors of the store become findings."""
    try:
        why = step.run()
    except (StorageError, CorruptionError) as e:
        is_forbidden = is_about_permission(e)
        if not step.is_for_node:
            lacks = f"{step.permission} is missing" if is_forbidden else str(e)
            why = f"{lacks}: `firn sweep` cannot abort uploads; a node does without"
            return StepResult(step.what, Outcome.LEFT_OUT, why)
        return StepResult(step.what, Outcome.FAILED, str(e), (step.permission,) if is_forbidden else ())
    if why is None:
        return StepResult(step.what, Outcome.FINE)
    return StepResult(step.what, Outcome.FAILED if step.is_for_node else Outcome.ADVICE, why)


def is_about_permission(error: FirnError) -> bool:
    """Return whether a store refused this request for its permission, not the credentials or the bucket.

    For a delete of many objects the refusal of each is in a response that is not an error.
    """
    return "AccessDenied" in f"{error} {error.__cause__}"
