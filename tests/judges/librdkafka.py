"""librdkafka's own test runner, of the sources that npm's @confluentinc/kafka-javascript brings along.

Each case is one run: a test, the part of it (SUBTESTS), and how its clients connect.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from tests.judges.clusters import SCRAM, Plan, SecuredCluster
from tests.judges.suites import FAILED, PASSED, SKIPPED, States, Suite, run
from tests.support.issuers import ALLOWED, document, issuer_server, key_file, settings_of, token_of
from tests.support.kafka_tools import RUNNER
from tests.support.quorums import Program

REAUTH_MS: Final = 10_000
PASSWORD: Final = "of-the-key"
_ENDED = re.compile(r"\[ (.+?): (PASS|FAIL|SKIP)")


@dataclass(frozen=True)
class Case:
    """One run of the test runner."""

    test: str
    part: str = ""
    connect: str = "PLAINTEXT"
    mechanism: str = ""
    is_new_group: bool = False
    """by KIP-848"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """of the cluster, which cases with the same share"""

    @property
    def name(self) -> str:
        words = (self.test, self.part, self.connect, self.mechanism, "KIP-848" if self.is_new_group else "")
        return " ".join(word for word in words if word)


_AUTH: Final = {"listener.name.ssl.ssl.client.auth": "required"}
_SESSIONS: Final = {"connections.max.reauth.ms": str(REAUTH_MS)}
_SASL: Final = [("SASL_PLAINTEXT", one) for one in ("PLAIN", *SCRAM)] + [("SASL_SSL", SCRAM[1])]
_ISSUER: Final = {
    "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
    **settings_of("file://{folder}/keys.json", "oauth"),
    ALLOWED: "file://{folder}/keys.json",
}
_TOKEN_PARTS: Final = (
    "Test producer and consumer with oidc configuration: client_credentials",
    "Test producer and consumer with oidc configuration: Sub claim",
    "Test authentication failure with oidc configuration: Sub claim",
    "Test OAUTHBEARER/OIDC failing with invalid JWT",
    "Test OAUTHBEARER/OIDC failing with expired JWT",
    "Test share consumer with oidc configuration: client_credentials",
)
_ADMIN_PARTS: Final = ("do_test_CreateAcls", "do_test_DescribeAcls", "do_test_DeleteAcls", "null bytes")
_OPERATIONS: Final = ("DescribeTopics with", "DescribeCluster with", "DescribeConsumerGroups with")
_REAUTH_PARTS: Final = (
    "test consumer message loss",
    "test producer message loss",
    "test share consumer message loss",
    "test reauth in the middle of a txn",
    "test reauth failure with wrong credentials",
    "test share consumer reauth failure",
)

CASES: Final = (
    Case("0097", connect="SSL", settings=_AUTH),
    Case("0097", connect="SASL_SSL", mechanism="PLAIN", settings=_AUTH),
    Case("0133"),
    *(Case("0001", connect=how, mechanism=one, settings=_AUTH) for how, one in [*_SASL, ("SSL", "")]),
    Case("0109"),
    Case("0109", is_new_group=True),
    Case("0109", connect="SASL_SSL", mechanism="SCRAM-SHA-512", settings=_AUTH),
    Case("0115"),
    Case("0119"),
    Case("0119", is_new_group=True),
    *(Case("0135", "do_test:", how, one, settings=_AUTH) for how, one in _SASL),
    Case("0135", "do_test_share", "SASL_SSL", "PLAIN", settings=_AUTH),
    *(Case("0081", part) for part in _ADMIN_PARTS),
    *(
        Case("0081", part, "SASL_PLAINTEXT", "SCRAM-SHA-256", settings=_AUTH)
        for part in (*_ADMIN_PARTS, *_OPERATIONS)
    ),
    *(Case("0142", part, "SASL_PLAINTEXT", "SCRAM-SHA-512", settings=_SESSIONS) for part in _REAUTH_PARTS),
    *(Case("0142", part, "SASL_SSL", "PLAIN", settings=_SESSIONS) for part in _REAUTH_PARTS[:2]),
    *(Case("0126", part, "OAUTH", settings=_ISSUER) for part in _TOKEN_PARTS),
)
_USER: Final = ("tester", "tester-secret")
"""No super user: what it may is told by ACLs, of which there are none at first."""


class Librdkafka(Suite):
    """Tests of TLS, logins, sessions that end, ACLs and SCRAM's administration."""

    name = "librdkafka"
    version = "1.10.1"  # of the package
    differs: Mapping[str, str] = {
        "0126 Test share": "share groups are not served",
        "0135 do_test_share": "share groups are not served",
        "0142 test share": "share groups are not served",
        "0142 test reauth in the middle of a txn": "transactions are not served",
    }

    @property
    def _tests(self) -> Path:
        return self.source / "package" / "deps" / "librdkafka" / "tests"

    def fetch(self) -> None:
        if (self._tests / "test-runner").exists():
            return
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        log, root = self.source / "build.log", self._tests.parent
        run(
            ["npm", "pack", "-s", f"@confluentinc/kafka-javascript@{self.version}"],
            self.source,
            log,
            must=True,
        )
        (packed,) = self.source.glob("*.tgz")
        run(["tar", "xzf", packed, "package/deps/librdkafka"], self.source, log, must=True)
        options = ("--disable-lz4-ext", "--disable-zstd", "--disable-gssapi", "--enable-ssl")
        run(["./configure", *options], root, log, must=True)
        run(["make", "-j2", "libs"], root, log, must=True)
        run(["make", "-j2", "-C", self._tests, "test-runner"], root, log, must=True)

    def judge(self, program: Program, folder: Path) -> States:
        states: States = {}
        groups: dict[tuple[tuple[str, str], ...], list[Case]] = {}
        for case in (one for one in CASES if self.only in one.name):
            groups.setdefault(tuple(case.settings.items()), []).append(case)
        for number, (settings, cases) in enumerate(groups.items()):
            users = [(one, *_USER) for one in SCRAM]
            plan = Plan(
                plain=dict([_USER]), scram=users, settings=dict(settings), listeners={"OAUTH": "SASL_SSL"}
            )
            made = SecuredCluster(folder / f"cluster-{number}", program, plan)
            key_file(made.folder, "one")
            with made.start() as cluster, issuer_server(_token) as issuer:
                env = {**self._kafka(cluster), **_stores(cluster), **_urls(issuer.url)}
                for case in cases:
                    if program is Program.FIRN and self.excuse(case.name):
                        states[case.name] = SKIPPED  # it would wait for minutes
                        continue
                    told = self._run(case, cluster, env, folder)
                    if FAILED in told.values():  # once more: a busy machine is late for their limits
                        told = self._run(case, cluster, env, folder)
                    states |= told
                    print(f"  {case.name}: {states.get(case.name)}", flush=True)
        return states

    def _kafka(self, cluster: SecuredCluster) -> dict[str, str]:
        """Scripts where the tests look for them."""
        scripts = cluster.folder / "kafka" / "bin"
        scripts.mkdir(parents=True)
        for tool in ("acls", "topics", "configs"):
            script = scripts / f"kafka-{tool}.sh"
            script.write_text(f'#!/bin/sh\nexec {RUNNER} {tool} "$@"\n')
            script.chmod(0o755)
        return {
            "KAFKA_PATH": str(scripts.parent),
            "BROKERS": cluster.bootstrap("PLAINTEXT"),
            "TEST_KAFKA_VERSION": "4.3.1",
            "LD_LIBRARY_PATH": ":".join(str(self._tests.parent / one) for one in ("src", "src-cpp")),
        }

    def _run(self, case: Case, cluster: SecuredCluster, env: Mapping[str, str], folder: Path) -> States:
        at = folder / re.sub(r"\W+", "-", case.name)
        config, report, log = (at.with_suffix(end) for end in (".conf", ".json", ".log"))
        config.write_text("".join(f"{k}={v}\n" for k, v in _client(case, cluster, env).items()))
        own = {"TESTS": case.test, "RDKAFKA_TEST_CONF": str(config), "TEST_REPORT": str(report)}
        if case.part:
            own["SUBTESTS"] = case.part
        if case.is_new_group:
            own["TEST_CONSUMER_GROUP_PROTOCOL"] = "consumer"
        code = run(["./test-runner", "-p1", "-E"], self._tests, log, {**env, **own}, seconds=600)
        told = json.loads(report.read_text())["tests"] if code >= 0 and report.exists() else {}
        states = {one["state"] for name, one in told.items() if name.startswith(case.test)}
        parts = {told for _, told in _ENDED.findall(log.read_text(errors="replace"))}
        if code or not states or "FAILED" in states:
            return {case.name: FAILED}
        is_skipped = states == {"SKIPPED"} or (case.part and "PASS" not in parts)
        return {case.name: SKIPPED if is_skipped else PASSED}


def _client(case: Case, cluster: SecuredCluster, env: Mapping[str, str]) -> dict[str, str]:
    lines = {
        "test.topic.random": "true",
        "test.timeout.multiplier": "4",  # the tests' own limits are for a machine of their own
        "bootstrap.servers": cluster.bootstrap(case.connect),
        "security.protocol": cluster.protocols[case.connect],
    }
    if case.connect == "OAUTH":
        lines |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "tester",
            "sasl.oauthbearer.client.secret": "tester-secret",
            "sasl.oauthbearer.token.endpoint.url": env["VALID_OIDC_URL"],
        }
    if cluster.protocols[case.connect].endswith("SSL"):
        lines |= {
            "ssl.ca.location": cluster.ca_pem,
            "ssl.certificate.location": env["SSL_pub_pem"],
            "ssl.key.location": env["SSL_priv_pem"],
            "ssl.key.password": PASSWORD,
        }
    if case.mechanism:
        name, password = _USER
        lines |= {"sasl.mechanism": case.mechanism, "sasl.username": name, "sasl.password": password}
    return lines


def _urls(url: str) -> dict[str, str]:
    kinds = {"VALID_OIDC_URL": "valid", "INVALID_OIDC_URL": "invalid", "EXPIRED_TOKEN_OIDC_URL": "expired"}
    return {name: f"{url}/{kind}" for name, kind in kinds.items()}


def _token(request: BaseHTTPRequestHandler) -> None:
    """What an issuer gives a client that shows its id and secret."""
    life_s = -120 if request.path.endswith("expired") else 600
    token = token_of(_USER[0], life_s=life_s, client_id=_USER[0])
    said = {"access_token": "none" if request.path.endswith("invalid") else token, "token_type": "Bearer"}
    document(json.dumps({**said, "expires_in": 600}).encode())(request)


def _stores(cluster: SecuredCluster) -> dict[str, str]:
    """A client's key and certificates in every encoding, named by the variables that test 0097 reads."""
    client, ca = cluster.ca.issue("client", hosts=(), kind="rsa"), cluster.ca.issued.certificate
    der, lock = Encoding.DER, BestAvailableEncryption(PASSWORD.encode())
    files = {
        "SSL_pub_pem": client.pem.encode(),
        "SSL_pub_der": client.certificate.public_bytes(der),
        "SSL_priv_pem": client.key_pem(PASSWORD).encode(),
        "SSL_priv_der": client.key.private_bytes(der, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "SSL_pkcs": pkcs12.serialize_key_and_certificates(
            b"client", client.key, client.certificate, [ca], lock
        ),
        "SSL_ca_der": ca.public_bytes(der),
        "SSL_all_cas_pem": cluster.ca.pem.encode(),
    }
    for name, content in files.items():
        (cluster.folder / name).write_bytes(content)
    paths = {name: str(cluster.folder / name) for name in files}
    return {**paths, "SSL_password": PASSWORD, "SSL_client_auth": "required"}
