"""Texts of obstore's errors, and the errors that Firn makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import FirnError, StorageError
from service.remote.stores.answers import may_be_past_the_end, store_error
from service.remote.stores.breaker import Breaker, BreakerSettings, is_failure
from service.remote.stores.errors import (
    AccessRefused,
    AccountRefused,
    BucketRefused,
    CredentialsExpired,
    CredentialsMissing,
    ObjectAsleep,
    ObjectNotFound,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    StoreUnreachable,
)

PLACE = "s3://b at http://h"
REFUSED = (
    "Generic S3 error: Error performing GET http://h/b/k in 506.02µs - HTTP error: error sending request\n\n"
    'Debug source:\nGeneric {\n ConnectError(\n "tcp connect error",\n message: "Connection refused",\n}'
)


def answered(status: str, body: str, method: str = "GET") -> str:
    return (
        f"Generic S3 error: Error performing {method} http://h/b/k in 1.4ms after 1 retries, max_retries: 1, "
        f"retry_timeout: 5s - "
        f"Server returned non-2xx status code: {status}: {body}\n\nDebug source:\nGeneric {{"
    )


def error(code: str, more: str = "") -> str:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>words\nof it</Message>{more}</Error>"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (answered("503 Slow Down", error("SlowDown")), StoreThrottled, "answered 503 SlowDown (words of it)"),
        (answered("503 Service Unavailable", "", "HEAD"), StoreThrottled, "answered 503"),
        (answered("429 Too Many Requests", ""), StoreThrottled, "answered 429"),
        (answered("500 Internal Server Error", error("InternalError")), StoreUnavailable, "answered 500"),
        (answered("400 Bad Request", error("RequestTimeout")), StoreUnavailable, "400 RequestTimeout"),
        (answered("400 Bad Request", error("ExpiredToken")), CredentialsExpired, "have expired"),
        (answered("403 Forbidden", error("ExpiredTokenException")), CredentialsExpired, "have expired"),
        (
            answered(
                "403 Forbidden",
                "<Error><Code>Other</Code>"
                "<Message>The security token included in the request is expired</Message></Error>",
            ),
            CredentialsExpired,
            "have expired",
        ),
        (answered("403 Forbidden", error("AccessDenied")), AccessRefused, "do not permit it"),
        (answered("403 Forbidden", error("InvalidAccessKeyId")), AccountRefused, "know this access key"),
        (answered("403 Forbidden", error("SignatureDoesNotMatch")), AccountRefused, "secret access key"),
        (answered("403 Forbidden", ""), AccessRefused, "answered 403"),
        (answered("404 Not Found", error("NoSuchBucket")), BucketRefused, "there is no such bucket"),
        (
            answered("400 Bad Request", error("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")),
            BucketRefused,
            "lies in another region, in eu-west-1: say which (region, AWS_REGION)",
        ),
        (
            "Generic S3 error: Error performing GET http://h/b/k in 1ms - "
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            BucketRefused,
            "lies in another region: say which",
        ),
        (REFUSED, StoreUnreachable, "no answer (connection refused)"),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 5s - "
            "HTTP error: "
            "error sending request\n\nDebug source:\nGeneric {\n kind: TimedOut,\n",
            CredentialsMissing,
            "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile "
            "(AWS_PROFILE), or give the machine a role; the machine's metadata service does not answer",
        ),
    ],
)
def test_each_answer_is_told_by_what_to_do_about_it(text: str, kind: type[FirnError], said: str) -> None:
    found = store_error("k", PLACE, text)
    assert type(found) is kind
    assert said in str(found)
    assert "\n" not in str(found)
    assert PLACE in str(found)


def test_a_404_names_an_object_a_bucket_or_an_upload() -> None:
    def found(code: str) -> FirnError:
        body = error(code) if code else ""
        return store_error("k", PLACE, answered("404 Not Found", body), not_found=True)

    assert type(found("NoSuchKey")) is ObjectNotFound
    assert type(found("")) is ObjectNotFound
    assert type(found("NoSuchBucket")) is BucketRefused
    assert type(found("NoSuchUpload")) is StoreUnavailable


def privileges(body: str, method: str = "GET") -> str:
    """Return obstore's text of a 403."""
    return (
        f"The operation lacked the necessary privileges to complete for path k: Error performing {method} "
        f"http://h/b/k in 5.2ms - Server returned non-2xx status code: 403 Forbidden: {body}"
    )


def exists(code: str) -> str:
    """Return obstore's text of Azure's 409."""
    return (
        "Object at location k already exists: Error performing GET http://h/c/k in 5.1ms - Server returned "
        f"non-2xx status code: 409 Conflict: {error(code)}"
    )


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        # S3 and what speaks it
        (privileges(error("AccessDenied")), AccessRefused, "do not permit it (403 AccessDenied)"),
        (privileges("", "HEAD"), AccessRefused, "answered 403"),
        (privileges("<html><title>403</title>blocked by a proxy</html>"), AccessRefused, "answered 403"),
        (privileges(error("InvalidObjectState")), ObjectAsleep, "in an archive class and has to be restored"),
        (answered("400 Bad Request", error("KMS.DisabledException")), StoreRefused, "its encryption key"),
        (answered("400 Bad Request", error("KMS.KMSInvalidStateException")), StoreRefused, "its encryption"),
        (answered("400 Bad Request", error("KMS.NotFoundException")), StoreRefused, "its encryption key"),
        (answered("400 Bad Request", error("ObjectLocked")), StoreRefused, "the object is locked"),
        (
            "Generic S3 error: DeleteObjects request failed for key a/b: c.seg: Access Denied "
            "(code: AccessDenied)",
            AccessRefused,
            "do not permit it (200 AccessDenied)",
        ),
        # Google, whose XML API is asked
        (privileges(error("RetentionPolicyNotMet")), StoreRefused, "under a retention policy"),
        (privileges(error("ObjectUnderActiveHold")), StoreRefused, "under a hold"),
        # Azure
        (exists("BlobArchived"), ObjectAsleep, "in the archive tier and has to be rehydrated"),
        (exists("BlobBeingRehydrated"), ObjectAsleep, "is being rehydrated"),
        (exists("BlobImmutableDueToPolicy"), StoreRefused, "immutability policy"),
        (privileges(error("AuthorizationPermissionMismatch")), AccessRefused, "do not permit it"),
        (privileges(error("KeyVaultEncryptionKeyNotFound")), StoreRefused, "its encryption key"),
        # A folder
        (
            "Generic LocalFileSystem error: Unable to open file /d/k: Permission denied (os error 13)",
            AccessRefused,
            "Permission denied",
        ),
    ],
)
def test_a_refusal_of_an_object_says_nothing_of_the_store(
    text: str, kind: type[FirnError], said: str
) -> None:
    found = store_error("k", PLACE, text)
    assert type(found) is kind
    assert said in str(found)
    assert not is_failure(found)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (privileges(error("InvalidAccessKeyId")), AccountRefused),
        (privileges(error("SignatureDoesNotMatch")), AccountRefused),
        (privileges(error("RequestTimeTooSkewed")), AccountRefused),
        (privileges(error("AllAccessDisabled")), AccountRefused),
        (answered("401 Unauthorized", ""), AccountRefused),
        (answered("400 Bad Request", error("ExpiredToken")), CredentialsExpired),
        (answered("404 Not Found", error("NoSuchBucket")), BucketRefused),
        (answered("503 Slow Down", error("SlowDown")), StoreThrottled),
        ("Generic S3 error: DeleteObjects request failed for key k: Slow (code: SlowDown)", StoreThrottled),
        (privileges(error("AuthenticationFailed")), AccountRefused),
        (privileges(error("AuthorizationFailure")), AccountRefused),
        (privileges(error("AccountIsDisabled")), AccountRefused),
        (answered("404 Not Found", error("ContainerNotFound")), BucketRefused),
        (REFUSED, StoreUnreachable),
    ],
)
def test_errors_of_account_bucket_and_endpoint_are_told_apart(text: str, kind: type[StorageError]) -> None:
    found = store_error("k", PLACE, text)
    assert type(found) is kind
    assert is_failure(found)
    breaker = Breaker(BreakerSettings(failures=3))
    assert [breaker.failed(found, "k", began_ms=0, now_ms=0) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        answered("500 Internal Server Error", error("InternalError")),
        answered("400 Bad Request", error("RequestTimeout")),
        answered("400 Bad Request", error("KMS.ThrottlingException")),
        "Generic S3 error: DeleteObjects request failed for key k: Oops (code: InternalError)",
        "Generic S3 error: Error performing GET http://h/b/k in 10s - HTTP error: error sending request\n\n"
        "Debug source:\nGeneric {\n kind: Timeout,\n source: TimedOut,\n}",
    ],
)
def test_a_failure_that_may_be_of_one_object_counts_once_for_each(text: str) -> None:
    found = store_error("k", PLACE, text)
    assert type(found) is StoreUnavailable
    breaker = Breaker(BreakerSettings(failures=2))
    assert not any(breaker.failed(found, "one", began_ms=0, now_ms=0) for _ in range(50))
    assert breaker.failed(found, "two", began_ms=0, now_ms=0)


def test_a_deletion_that_is_refused_among_others_names_its_object() -> None:
    text = (
        "Generic S3 error: DeleteObjects request failed for key a/b.seg: Access Denied (code: AccessDenied)"
    )
    assert str(store_error("a/a.seg", PLACE, text)).startswith("a/b.seg: the store")


def test_an_object_that_is_called_like_the_metadata_service_is_an_object() -> None:
    key = "Error performing PUT http://169.254.169.254/latest"
    text = (
        f"Generic S3 error: Error performing GET http://h/b/{key} in 1ms - HTTP error: error sending request"
    )
    assert type(store_error("k", PLACE, text)) is StoreUnavailable


def test_neither_the_token_nor_what_was_signed_is_shown() -> None:
    secrets = (
        "<Token-0>FwoGZX</Token-0><AWSAccessKeyId>AKIDX</AWSAccessKeyId><StringToSign>abc</StringToSign>"
    )
    for code in ("ExpiredToken", "InvalidToken", "SignatureDoesNotMatch", "SomethingNew"):
        said = str(store_error("k", PLACE, answered("400 Bad Request", error(code, secrets))))
        assert not any(secret in said for secret in ("FwoGZX", "AKIDX", "abc")), said


@given(st.text(max_size=400), st.booleans(), st.booleans())
def test_store_errors_become_one_short_line(text: str, is_refusal: bool, not_found: bool) -> None:
    for said in (text, answered("400 Bad Request", f"<Code>{text}</Code><Message>{text}</Message>")):
        found = str(store_error("k", PLACE, said, is_refusal=is_refusal, not_found=not_found))
        assert len(found.splitlines()) <= 1
        assert len(found) < 1100


def test_only_an_answer_about_ranges_is_looked_into() -> None:
    assert may_be_past_the_end(answered("416 Range Not Satisfiable", ""))
    assert may_be_past_the_end("Generic LocalFileSystem error: Requested range was invalid")
    assert not may_be_past_the_end(answered("503 Slow Down", error("SlowDown")))
    assert not may_be_past_the_end(REFUSED)
