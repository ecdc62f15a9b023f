"""Sources of a package: a path, HTTPS, or S3 with the machine's own role; marks in S3, and secrets."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

from .document import Package

ANSWER_BYTES = 1 << 20


def fetch(package: Package) -> Iterator[bytes]:
    """The bytes of a package. Raises OSError, as urllib's errors are."""
    if package.url.startswith("/"):
        with open(package.url, "rb") as file:
            while piece := file.read(1 << 20):
                yield piece
        return
    request = urllib.request.Request(package.url) if package.url.startswith("https:") else s3_request(package)
    yield from received(request)


def received(request: urllib.request.Request) -> Iterator[bytes]:
    with urllib.request.urlopen(request, timeout=60) as answer:
        promised, size = answer.headers.get("Content-Length", ""), 0
        while piece := answer.read(1 << 20):
            size += len(piece)
            yield piece
        # The library takes a connection that ends too early for the end of what was asked for.
        if promised.isdecimal() and size != int(promised):
            raise OSError(f"the connection ended after {size} of {promised} bytes")


def credentials() -> dict[str, str]:
    """Return the AWS keys of the environment, or of the machine's role (instance metadata, version 2)."""
    if key := os.environ.get("AWS_ACCESS_KEY_ID"):
        return {
            "AccessKeyId": key,
            "SecretAccessKey": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
            "Token": os.environ.get("AWS_SESSION_TOKEN", ""),
        }
    base = "http://169.254.169.254/latest"
    ask = urllib.request.Request(
        f"{base}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    )
    with urllib.request.urlopen(ask, timeout=5) as answer:
        token = {"X-aws-ec2-metadata-token": answer.read(4096).decode("utf-8", "replace")}
    roles = f"{base}/meta-data/iam/security-credentials/"
    with urllib.request.urlopen(urllib.request.Request(roles, headers=token), timeout=5) as answer:
        role = answer.read(4096).decode("utf-8", "replace").partition("\n")[0]
    with urllib.request.urlopen(urllib.request.Request(roles + role, headers=token), timeout=5) as answer:
        told = answer.read(65536)
    try:
        found = json.loads(told)
        return {name: str(found[name]) for name in ("AccessKeyId", "SecretAccessKey", "Token")}
    except (KeyError, TypeError, ValueError):
        raise OSError(f"the machine's role {role} has no keys yet") from None


def s3_request(package: Package) -> urllib.request.Request:
    """A signed GET of s3://bucket/key."""
    return s3(package.url, package.region)


def claimed(url: str, region: str, text: str, more: dict[str, str] | None = None) -> str:
    """Makes the object s3://bucket/key of this text unless there is one; what is there. `more`: headers.
    Raises OSError."""
    headers = {"content-type": "text/plain", "if-none-match": "*", **(more or {})}
    try:
        request = s3(url, region, "PUT", headers, text.encode())
        with urllib.request.urlopen(request, timeout=60):
            return text
    except urllib.error.HTTPError as error:
        if error.code != 412:
            raise
    return b"".join(received(s3(url, region))).decode("utf-8", "replace")


def s3(
    url: str, region: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes = b""
) -> urllib.request.Request:
    """A signed request for s3://bucket/key; AWS_ENDPOINT_URL names another S3 than AWS's."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    path = "/" + urllib.parse.quote(key, safe="/~")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        base, path = endpoint.rstrip("/"), f"/{bucket}{path}"
    else:
        base = f"https://{bucket}.s3.{region}.{domain(region)}"
    hashed = {"x-amz-content-sha256": hashlib.sha256(body).hexdigest(), **(headers or {})}
    return signed(method, base, path, ("s3", region), hashed, body)


def secret(arn: str) -> str:
    """The text of a secret of Secrets Manager, or of a parameter of SSM. Raises OSError."""
    service, region = arn.split(":")[2:4]
    if service == "ssm":
        target, asked = "AmazonSSM.GetParameter", {"Name": arn, "WithDecryption": True}
    else:
        target, asked = "secretsmanager.GetSecretValue", {"SecretId": arn}
    base = os.environ.get("AWS_ENDPOINT_URL", f"https://{service}.{region}.{domain(region)}").rstrip("/")
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
    request = signed("POST", base, "/", (service, region), headers, json.dumps(asked).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.loads(answer.read(ANSWER_BYTES))
        text = told["Parameter"]["Value"] if service == "ssm" else told["SecretString"]
    except urllib.error.HTTPError as error:
        # AWS names the reason in the body, where urllib does not look.
        reason = re.search(rb'"__type" *: *"([\w.#]{1,100})"', error.read(4096))
        raise OSError(f"{error.code} {reason[1].decode() if reason else error.reason}") from None
    except (KeyError, TypeError, ValueError):
        raise OSError("the answer has no text") from None
    if not isinstance(text, str):
        raise OSError("the answer has no text")
    return text


def domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def signed(
    method: str, base: str, path: str, where: tuple[str, str], headers: dict[str, str], body: bytes
) -> urllib.request.Request:
    """A request with the machine's signature. `where`: service and region."""
    host, now = urllib.parse.urlsplit(base).netloc, datetime.datetime.now(datetime.UTC)
    all_headers = sign(credentials(), where, method, path, now, {"host": host, **headers}, body)
    return urllib.request.Request(base + path, body or None, all_headers, method=method)


def sign(
    keys: dict[str, str],
    where: tuple[str, str],
    method: str,
    path: str,
    now: datetime.datetime,
    given: dict[str, str],
    body: bytes = b"",
) -> dict[str, str]:
    """Headers of a signed request without a query, as in AWS's "Signature Version 4". `where`: service and
    region; `given`: headers with the host among them, which urllib says itself."""
    stamp, content = now.strftime("%Y%m%dT%H%M%SZ"), hashlib.sha256(body).hexdigest()
    headers = {**given, "x-amz-date": stamp}
    if keys["Token"]:
        headers["x-amz-security-token"] = keys["Token"]
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [method, path, "", *(f"{n}:{headers[n]}" for n in sorted(headers)), "", names, content]
    )
    scope = f"{stamp[:8]}/{where[1]}/{where[0]}/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys['SecretAccessKey']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    who = f"Credential={keys['AccessKeyId']}/{scope}"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={names}, Signature={signature}"
    del headers["host"]
    return headers
