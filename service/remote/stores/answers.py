"""Translate obstore's errors into ours, each with one line of text. [P]

obstore gives the status and the body of an answer only in its error's text. Of the body at most code, message
and region are shown: S3 repeats the session token that it refuses, and what it signed. A HEAD has no body.

>>> text = "… Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"
>>> store_error("k", "s3://b", text)
StoreThrottled('k: the store s3://b answered 503 SlowDown')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from service.base.errors import StorageError
from service.remote.stores.errors import (
    AccessRefused,
    AccountRefused,
    BucketRefused,
    CredentialsExpired,
    CredentialsMissing,
    ObjectAsleep,
    ObjectNotFound,
    RequestUnknown,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    StoreUnreachable,
)

_NO_AWS_CREDENTIALS: Final = (
    "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile "
    "(AWS_PROFILE), or give the machine a role"
)

_STATUS: Final = re.compile(r"Server returned (?:non-2xx status code|error response): (\d{3})\b")
_IN_A_BATCH: Final = re.compile(
    r"DeleteObjects request failed for key (?P<key>.*?): .*\(code: (?P<code>\w[\w.]*)\)\s*$", re.DOTALL
)
"""One of several deletions of one request, which itself was answered with 200."""
_NOT_PERMITTED: Final = re.compile(r"LocalFileSystem error: .*\(os error (?:1|13)\)\s*$", re.DOTALL)
"""EPERM or EACCES of a file in a folder."""
_TAG: Final = r"<{0}>\s*([^<]*?)\s*</{0}>"
_CODE: Final = re.compile(_TAG.format("Code"))
_MESSAGE: Final = re.compile(_TAG.format("Message"))
_REGION: Final = re.compile(_TAG.format("Region"))
_EXPIRED_WORDS: Final = "token included in the request is expired"
_EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_REGION_CODES: Final = (
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
)
_NO_LOCATION: Final = "Received redirect without LOCATION"
_NO_OBJECT: Final = ("NoSuchKey", "BlobNotFound")
_METADATA: Final = re.compile(
    r"Error performing [A-Z]+ https?://"
    r"(?:169\.254\.169\.254|\[fd00:ec2::254\]|metadata\.google\.internal)[:/]"
)
_TRANSPORT: Final = re.compile(r'(?:\bmessage|\berror): "([^"\\]+)"|\b(TimedOut|IncompleteMessage)\b')
_OF_A_SERVER: Final = re.compile(r"HTTP error|Generic S3 error")
_NO_CONNECTION: Final = "ConnectError("
_WORDS: Final = {"TimedOut": "timed out", "IncompleteMessage": "connection closed"}


class _Refusal(NamedTuple):
    """Error class of a refusal's code, and a hint for the operator."""

    kind: type[StoreRefused]
    hint: str


_REFUSALS: Final[Mapping[str, _Refusal]] = {
    # Of the account, for any object.
    "InvalidAccessKeyId": _Refusal(AccountRefused, "it does not know this access key"),
    "SignatureDoesNotMatch": _Refusal(
        AccountRefused, "the secret access key is not the one of this access key"
    ),
    "InvalidToken": _Refusal(AccountRefused, "the session token is not one of this access key"),
    "RequestTimeTooSkewed": _Refusal(AccountRefused, "the clock of this machine is wrong"),
    "AllAccessDisabled": _Refusal(AccountRefused, "all access to the bucket is disabled"),
    "AccountProblem": _Refusal(AccountRefused, "the account has a problem"),
    "NotSignedUp": _Refusal(AccountRefused, "the account is not signed up for the service"),
    "InvalidSecurity": _Refusal(AccountRefused, "it does not accept these credentials"),
    "UserProjectAccountProblem": _Refusal(AccountRefused, "the account has a problem"),
    "AuthenticationFailed": _Refusal(AccountRefused, "it does not accept these credentials"),
    "InvalidAuthenticationInfo": _Refusal(AccountRefused, "it does not accept these credentials"),
    "NoAuthenticationInformation": _Refusal(AccountRefused, "it wants credentials"),
    "AuthorizationFailure": _Refusal(AccountRefused, "the account does not permit it from this network"),
    "AccountIsDisabled": _Refusal(AccountRefused, "the account is disabled"),
    # Of the bucket.
    "NoSuchBucket": _Refusal(BucketRefused, "there is no such bucket"),
    "InvalidBucketName": _Refusal(BucketRefused, "this is no name of a bucket"),
    "ContainerNotFound": _Refusal(BucketRefused, "there is no such container"),
    "ContainerBeingDeleted": _Refusal(BucketRefused, "the container is being deleted"),
    "ContainerDisabled": _Refusal(BucketRefused, "the container is disabled"),
    # Of the object, or of a prefix.
    "AccessDenied": _Refusal(AccessRefused, "these credentials do not permit it"),
    "AuthorizationPermissionMismatch": _Refusal(AccessRefused, "these credentials do not permit it"),
    "InsufficientAccountPermissions": _Refusal(AccessRefused, "these credentials do not permit it"),
    "InvalidObjectState": _Refusal(
        ObjectAsleep, "the object lies in an archive class and has to be restored first"
    ),
    "BlobArchived": _Refusal(
        ObjectAsleep, "the blob lies in the archive tier and has to be rehydrated first"
    ),
    "BlobBeingRehydrated": _Refusal(ObjectAsleep, "the blob is being rehydrated from the archive tier"),
    "ObjectLocked": _Refusal(StoreRefused, "the object is locked"),
    "ObjectUnderActiveHold": _Refusal(StoreRefused, "the object is under a hold"),
    "RetentionPolicyNotMet": _Refusal(StoreRefused, "the object is under a retention policy"),
    "BlobImmutableDueToPolicy": _Refusal(StoreRefused, "the blob is under an immutability policy"),
    "BlobImmutableDueToLegalHold": _Refusal(StoreRefused, "the blob is under a legal hold"),
    "NotImplemented": _Refusal(RequestUnknown, "it does not know this request"),
}
_KEY_CODES: Final = ("KMS.", "Kms", "KeyVault")
"""Codes that begin so concern the object's encryption key: disabled, deleted, not permitted."""
_OF_A_KEY: Final = _Refusal(StoreRefused, "its encryption key cannot be used")
_MAX_SHOWN: Final = 300


class StoreResponse(NamedTuple):
    """A store's answer; `status` is None where there was none."""

    status: int | None
    code: str
    message: str
    region: str

    def __str__(self) -> str:
        said = " ".join(word for word in (str(self.status or ""), self.code) if word)
        return f"{said} ({self.message})" if self.message else said


def response_in(text: str) -> StoreResponse:
    """Return the store's answer in the text of an obstore error."""
    text = text.partition("\n\nDebug source")[0]
    status = _STATUS.search(text)
    if status is None and (failed := _IN_A_BATCH.search(text)) is not None:
        return StoreResponse(200, failed["code"], "", "")
    return StoreResponse(
        int(status[1]) if status else None,
        *(_one_line(found[1]) if (found := tag.search(text)) else "" for tag in (_CODE, _MESSAGE, _REGION)),
    )


def store_error(
    key: str, place: str, text: str, *, is_refusal: bool = False, not_found: bool = False
) -> StorageError:
    """Return our error for obstore's `text`; `place` names the store in messages.

    `is_refusal` and `not_found`: obstore's class of the error is a refusal, or a missing object.
    """
    answer, words = response_in(text), text.partition("\n\nDebug source")[0]
    if answer.status == 200 and (failed := _IN_A_BATCH.search(words)) is not None:
        key = _one_line(failed["key"])
    said = f"{key}: the store {place} answered {answer}"
    if not_found and answer.code == "NoSuchUpload":
        # It was aborted, or an abort's first answer was lost: the next upload is a new one.
        return StoreUnavailable(said)
    if not_found and (not answer.code or answer.code in _NO_OBJECT):
        return ObjectNotFound(key)
    if answer.code in _EXPIRED or _EXPIRED_WORDS in answer.message:
        return CredentialsExpired(f"{key}: the credentials for {place} have expired ({answer.code})")
    if answer.code in _REGION_CODES or _NO_LOCATION in text:
        where = f", in {answer.region}" if answer.region else ""
        return BucketRefused(
            f"{key}: the bucket of {place} lies in another region{where}: say which (region, AWS_REGION)"
        )
    request = _METADATA.search(text)
    if request is not None and "://" not in text[: request.start()]:
        return no_credentials(place, _metadata_answer(answer, text))
    if answer.status in (429, 503) or answer.code == "SlowDown":
        return StoreThrottled(said)
    if (refusal := _refusal(answer)) is not None:
        return refusal.kind(
            f"{key}: the store {place} refuses: {refusal.hint} ({answer.status} {answer.code})"
        )
    if answer.status == 401:
        return AccountRefused(said)
    if answer.status == 403:
        return AccessRefused(said)
    if _NOT_PERMITTED.search(words):
        return AccessRefused(f"{key}: {place}: {_first_line(text)}")
    if answer.status in (405, 501):
        return RequestUnknown(said)
    if answer.status and (is_refusal or not_found):
        return StoreRefused(said)
    if is_refusal or not_found:
        return RequestUnknown(f"{key}: {place}: {_first_line(text)}")
    if answer.status:
        return StoreUnavailable(said)
    kind = StoreUnreachable if _NO_CONNECTION in text else StoreUnavailable
    return kind(f"{key}: {place}: {_no_answer(text)}")


def _refusal(answer: StoreResponse) -> _Refusal | None:
    if (known := _REFUSALS.get(answer.code)) is not None:
        return known
    is_final = answer.status in (400, 403, 409) and "Throttl" not in answer.code
    return _OF_A_KEY if is_final and answer.code.startswith(_KEY_CODES) else None


def no_credentials(place: str, detail: str) -> CredentialsMissing:
    """Return the error for missing credentials, with the remedy."""
    words = _NO_AWS_CREDENTIALS if place.startswith("s3:") else "there are no credentials in the environment"
    return CredentialsMissing(f"{place}: {words}; {detail}")


_WHOLE: Final = "non-partial response"


def may_be_past_the_end(text: str) -> bool:
    """Return whether a failed ranged GET may have asked for bytes beyond the object's end.

    Stores answer that with 416, for an empty object with the whole of it, and folders in texts of their own.
    An S3 request without an answer says nothing about ranges.
    """
    status = response_in(text).status
    if status is None:
        return _WHOLE in text or not _OF_A_SERVER.search(text)
    return status == 416


def is_timeout(text: str) -> bool:
    """Return whether a request missed a deadline: to connect, for the first byte, for the next one, or in
    all."""
    return "kind: Timeout" in text or "TimedOut" in text


def is_wordless(text: str) -> bool:
    """Return whether a request was refused without a reason, as a HEAD is."""
    answer = response_in(text)
    return answer.status in (400, 403, 409) and not answer.code


def _metadata_answer(answer: StoreResponse, text: str) -> str:
    said = f"answers {answer.status}" if answer.status else f"does not answer ({_no_answer(text)})"
    return f"the machine's metadata service {said}"


def _no_answer(text: str) -> str:
    """Return why there is no answer: the innermost cause, which only the debug dump names."""
    head, _, dump = text.partition("\n\nDebug source")
    if "HTTP error" not in head:
        return _first_line(head)
    found = [message or _WORDS[kind] for message, kind in _TRANSPORT.findall(dump)]
    return _one_line(f"no answer ({found[-1].lower()})" if found else "no answer")


def _first_line(text: str) -> str:
    """Return obstore's message without its debug dump and without the body of an answer."""
    return _one_line(text.partition("\n\nDebug source")[0].partition("<")[0])


def _one_line(text: str) -> str:
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
