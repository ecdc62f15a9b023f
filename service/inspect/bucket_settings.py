"""Settings of a bucket that `firn bucket check` reads: advice, and one lifecycle rule that it demands.

A node can do without all of them. But nothing else ends the uploads that a killed node leaves unfinished
(ADR 37), so a store that has lifecycle rules has to have that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from service.inspect.bucket_create import UPLOAD_DAYS
from service.inspect.bucket_policy import CHECK_PERMISSIONS
from service.inspect.step_result import Outcome, StepResult

UPLOAD_RULE: Final = "lifecycle rule for unfinished uploads"
_NO_RULES: Final = "the store does not answer requests for lifecycle rules"
_UNKNOWN: Final = "See to it that the store ends uploads that a killed node left"
_OF_MINIO: Final = "unknown: MinIO has no such rules, and ends uploads after its api.stale_uploads_expiry"
_NO_UPLOAD_RULE: Final = (
    "no rule with AbortIncompleteMultipartUpload covers the prefix: parts of uploads that a killed node left "
    f"are billed until `firn sweep --delete` aborts them. Add one ({UPLOAD_DAYS} days are recommended)"
)


def settings_advice(client: Any, name: str) -> Iterator[StepResult]:
    """Yield advice on the settings of the bucket `name` where they differ from the recommended ones."""
    from botocore.exceptions import BotoCoreError, ClientError

    checks: dict[str, Callable[[], str | None]] = {
        "versioning": lambda: versioning_advice(client.get_bucket_versioning(Bucket=name)),
        "encryption": lambda: encryption_advice(client.get_bucket_encryption(Bucket=name)),
        "public access": lambda: public_advice(client.get_public_access_block(Bucket=name)),
    }
    for what, check in checks.items():
        try:
            advice = check()
        except ClientError as e:
            code = str(e.response.get("Error", {}).get("Code", "?"))
            if code in _NOT_SET:
                advice = _NOT_SET[code]
            else:
                why = f"{code}: the check needs {CHECK_PERMISSIONS[what]}; a node does not"
                yield StepResult(what, Outcome.LEFT_OUT, why)
                continue
        except BotoCoreError as e:
            yield StepResult(what, Outcome.LEFT_OUT, str(e))
            continue
        yield StepResult(what, Outcome.FINE if advice is None else Outcome.ADVICE, advice or "")


_ASLEEP: Final = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects cannot be read (GLACIER_IR is not one)."""
_PUBLIC: Final = "public access is not blocked"
_NOT_SET: Final = {
    "ServerSideEncryptionConfigurationNotFoundError": "nothing is encrypted by default",
    "NoSuchPublicAccessBlockConfiguration": _PUBLIC,
}


def versioning_advice(answer: dict[str, Any]) -> str | None:
    """Return advice on the result of ``GetBucketVersioning``."""
    if answer.get("Status") == "Enabled":
        return None
    return "it is off: an object deleted or overwritten by mistake cannot be restored"


def encryption_advice(answer: dict[str, Any]) -> str | None:
    """Return advice on the result of ``GetBucketEncryption``."""
    rules = answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", ())
    is_set = any(rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm") for rule in rules)
    return None if is_set else _NOT_SET["ServerSideEncryptionConfigurationNotFoundError"]


def lifecycle_advice(answer: dict[str, Any]) -> str | None:
    """Return advice on what the rules of ``GetBucketLifecycleConfiguration``'s result do to live objects."""
    rules = _enabled(answer)
    for rule in rules:
        if {"Days", "Date"} & set(rule.get("Expiration", {})):
            name = rule.get("ID", "?")
            return f"the rule {name!r} deletes objects by age: live ones too, where it covers the prefix"
    for rule in rules:
        asleep = {one.get("StorageClass") for one in rule.get("Transitions", ())} & _ASLEEP
        if asleep:
            name = rule.get("ID", "?")
            return (
                f"the rule {name!r} moves objects to {', '.join(sorted(asleep))}, where they cannot be read "
                "until they are restored: cold reads fail, where it covers the prefix"
            )
    return None


def ends_uploads(answer: dict[str, Any], key: str) -> bool:
    """Return whether a rule of ``GetBucketLifecycleConfiguration``'s result aborts unfinished uploads of
    `key`."""
    return any(
        rule.get("AbortIncompleteMultipartUpload") and key.startswith(_prefix_of(rule))
        for rule in _enabled(answer)
    )


def _enabled(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for rule in answer.get("Rules", ()) if rule.get("Status") == "Enabled"]


def _prefix_of(rule: dict[str, Any]) -> str:
    """Return the prefix that a rule covers: of its filter, or of the rule itself as S3 had it before."""
    where = rule.get("Filter") or rule
    return str((where.get("And") or where).get("Prefix") or "")


def check_lifecycle(client: Any, name: str, key: str) -> Iterator[StepResult]:
    """Yield advice on the lifecycle rules of the bucket `name`, and demand one that ends uploads below `key`.

    Whether there is one is unknown where the store does not answer, or has no such rules.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = client.get_bucket_lifecycle_configuration(Bucket=name)
    except ClientError as e:
        answer = e.response
        code = str(answer.get("Error", {}).get("Code", "?"))
        if code == "NoSuchLifecycleConfiguration":
            answer["Rules"] = []
        else:
            needs = f"{code}: the check needs {CHECK_PERMISSIONS['lifecycle']}; a node does not"
            yield from _unknown_rules(needs if "AccessDenied" in code else f"{code}: {_NO_RULES}")
            return
    except BotoCoreError as e:
        yield from _unknown_rules(str(e))
        return
    if "Rules" not in answer:  # older versions of versitygw answer with a list of objects
        yield from _unknown_rules(_NO_RULES)
        return
    advice = lifecycle_advice(answer)
    yield StepResult("lifecycle", Outcome.FINE if advice is None else Outcome.ADVICE, advice or "")
    yield _upload_rule(answer, key)


def _upload_rule(answer: dict[str, Any], key: str) -> StepResult:
    if ends_uploads(answer, key):
        return StepResult(UPLOAD_RULE, Outcome.FINE)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if str(headers.get("server", "")).startswith("MinIO"):
        return StepResult(UPLOAD_RULE, Outcome.LEFT_OUT, _OF_MINIO)
    return StepResult(UPLOAD_RULE, Outcome.FAILED, _NO_UPLOAD_RULE)


def unread_upload_rule() -> StepResult:
    """Return the result for a store whose lifecycle rules are not read."""
    return StepResult(UPLOAD_RULE, Outcome.LEFT_OUT, f"unknown: only S3's rules are read. {_UNKNOWN}")


def _unknown_rules(why: str) -> Iterator[StepResult]:
    yield StepResult("lifecycle", Outcome.LEFT_OUT, why)
    yield StepResult(UPLOAD_RULE, Outcome.LEFT_OUT, f"unknown. {_UNKNOWN}, or run `firn sweep --delete`")


def public_advice(answer: dict[str, Any]) -> str | None:
    """Return advice on the result of ``GetPublicAccessBlock``."""
    blocks = answer.get("PublicAccessBlockConfiguration", {})
    names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    return None if all(blocks.get(name) for name in names) else _PUBLIC
