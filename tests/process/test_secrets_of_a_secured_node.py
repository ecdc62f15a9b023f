"""Secrets of a whole secured node, looked for in everything that it tells, prints and stores elsewhere."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import aiohttp
import pytest

from service.base.errors import FirnError
from service.base.world import system_world
from service.cli.client_properties import read_node_http, read_security_file
from service.cli.main import main
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.console.web.server import console
from service.console.web.settings import ConsoleSettings
from service.security.scram import credential_from
from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk
from tests.node.test_secret_settings import alter, describe
from tests.support.certificates import Authority, trust_pkcs12
from tests.support.processes import FIRN, end, first_line, free_port, wait_until

CA = Authority()
MODULES = "org.apache.kafka.common.security"
ALICE, BOB, CAROL = "geheim-of-alice-1", "geheim-of-bob-2", "geheim-of-carol-3"
KEY_PASSWORD, TRUST_PASSWORD, NEW_PASSWORD = "geheim-key-4", "geheim-trust-5", "geheim-new-6"
TOKEN, WRONG_TOKEN, WRONG = "geheim-token-7-7-7-7", "geheim-token-8-8-8-8", "geheim-wrong-9"
SALTED = b"geheim-salted-password-of-dave-0"
MECHANISM = "SCRAM-SHA-512"


class Secured:
    """The node's process, with files in `folder`; `told` is what it said, by where."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bucket = folder, folder / "bucket"
        self.bucket.mkdir()
        self.sealed, self.open, self.http = free_port(), free_port(), free_port()
        self.key = folder / "node.pem"
        CA.issue().write(self.key, KEY_PASSWORD)
        (folder / "token").write_text(TOKEN)
        (folder / "bob").write_text(BOB)
        for one in (folder / "token", folder / "bob"):
            one.chmod(0o600)
        config = folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings().items()))
        command = [str(FIRN), "format", "-c", str(config), "-t", "4L6g3nShT-eMCtK--X86sw"]
        subprocess.run(
            [*command, f"--add-scram={MECHANISM}=[name=bob,password=@{folder / 'bob'}]"],
            check=True,
            capture_output=True,
        )
        with (folder / "printed").open("w") as printed:
            self.process = subprocess.Popen(
                [str(FIRN), "server", str(config), "--log-level", "debug"],
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
            )
        assert first_line(self.process, 60).startswith("ready: ")
        self.told: dict[str, bytes] = {}

    def settings(self) -> dict[str, str]:
        jaas = "listener.name.{}.{}.sasl.jaas.config"
        scram = f"{MODULES}.scram.ScramLoginModule required;"
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{self.sealed},SASL_PLAINTEXT://127.0.0.1:{self.open}",
            "log.dirs": str(self.folder / "data"),
            "firn.disk.watermarks.enable": "false",
            "ssl.keystore.location": str(self.key),
            "ssl.key.password": KEY_PASSWORD,
            "ssl.truststore.location": trust_pkcs12(
                self.folder / "trust.p12", TRUST_PASSWORD, CA.issued.certificate
            ),
            "ssl.truststore.password": TRUST_PASSWORD,
            "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
            jaas.format(
                "sasl_ssl", "plain"
            ): f'{MODULES}.plain.PlainLoginModule required user_alice="{ALICE}";',
            jaas.format("sasl_plaintext", "plain"): (
                f'{MODULES}.plain.PlainLoginModule required user_carol="{CAROL}";'
            ),
            jaas.format("sasl_ssl", MECHANISM.lower()): scram,
            jaas.format("sasl_plaintext", MECHANISM.lower()): scram,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:alice;User:bob",
            "firn.ssl.reload.interval.ms": "50",
            "firn.http.listener": f"127.0.0.1:{self.http}",
            "firn.http.ssl.keystore.location": str(self.key),
            "firn.http.ssl.key.password": KEY_PASSWORD,
            "firn.http.token.file": str(self.folder / "token"),
            "firn.remote.url": f"file://{self.bucket}",
            "remote.log.manager.task.interval.ms": "100",
        }

    def properties(self, token: str = TOKEN) -> str:
        """Return a file of `--command-config` for alice, and for HTTP."""
        (self.folder / "given-token").write_text(token)
        path = self.folder / "client.properties"
        path.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\n"
            f"sasl.password={ALICE}\nssl.ca.location={CA.write(self.folder / 'ca.pem')}\n"
            f"firn.http.token.file={self.folder / 'given-token'}\n"
        )
        return str(path)

    def client(self) -> BlockingClient:
        return BlockingClient("127.0.0.1", self.sealed, security=read_security_file(self.properties()))

    def login(self, port: int, mechanism: str, user: str, password: str) -> str:
        """Log in, and return how that fails; "" if it does not."""
        tls = read_security_file(self.properties()).tls if port == self.sealed else None
        security = Security(tls, Credentials(mechanism, user, password, lambda: "a-nonce"))
        try:
            BlockingClient("127.0.0.1", port, security=security).close()
        except FirnError as e:
            return str(e)
        return ""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    try:
        yield made
    finally:
        end(made.process, 30)
        assert made.process.stdout is not None
        made.process.stdout.close()


def ask_over_kafka(node: Secured) -> None:
    with node.client() as client:
        talk = Talk(client)
        node.told["DescribeConfigs"] = repr(describe(talk)).encode()
        refused = alter(talk, "1", listener_name_sasl_ssl_ssl_key_password=NEW_PASSWORD)
        node.told["IncrementalAlterConfigs"] = repr(refused).encode()
        assert refused[0] != 0
        module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
        dave = module.ScramCredentialUpsertion(
            name="dave", mechanism=2, iterations=4096, salt=b"geheim-salt", salted_password=SALTED
        )
        made = talk(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentialsRequest",
            deletions=(), upsertions=(dave,),
        )  # fmt: skip
        assert [one.error_code for one in made.results] == [0]
        users = talk(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentialsRequest", users=None
        )
        node.told["DescribeUserScramCredentials"] = repr(users).encode()
        talk.create("tiered", 1, remote_storage_enable="true")


def log_in_wrongly(node: Secured) -> None:
    """Every way leads to the log, and none with what was sent."""
    assert node.login(node.sealed, "PLAIN", "alice", ALICE) == ""
    assert node.login(node.open, MECHANISM, "bob", BOB) == ""
    assert node.login(node.open, "PLAIN", "carol", CAROL) == ""
    told = [
        node.login(node.open, "PLAIN", "alice", ALICE),  # of the other listener
        node.login(node.sealed, "PLAIN", "carol", CAROL),
        node.login(node.sealed, "PLAIN", "alice", WRONG),
        node.login(node.sealed, MECHANISM, "bob", WRONG),
        node.login(node.sealed, MECHANISM, "nobody", WRONG),
    ]
    assert all(told)
    node.told["refusals"] = "".join(told).encode()


def ask_over_http(node: Secured) -> None:
    http, url = read_node_http(node.properties()), f"https://127.0.0.1:{node.http}"
    for path in ("metrics", "readyz", "version", "turns", "tiering"):
        node.told[path] = http.get(f"{url}/{path}", 20, 64 << 20)
    with pytest.raises(HTTPError, match="401") as refused:
        read_node_http(node.properties(WRONG_TOKEN)).get(f"{url}/metrics", 20, 1 << 20)
    node.told["401"] = refused.value.read() + str(refused.value.headers).encode()


def break_its_files(node: Secured) -> None:
    """Half a key file, and half a token: errors that name them."""
    key, token = node.key.read_text(), node.folder / "token"
    http, url = read_node_http(node.properties()), f"https://127.0.0.1:{node.http}/readyz"
    node.key.write_text(key[:300])
    token.write_text("geheim")
    try:
        wait_until("the reasons", lambda: http.get(url, 5, 1 << 20).count(b"keeps its old") >= 3, 20, 0.3)
        node.told["readyz with reasons"] = http.get(url, 5, 1 << 20)
    finally:
        node.key.write_text(key)
        token.write_text(TOKEN)
    wait_until("the end of them", lambda: b"keeps its old" not in http.get(url, 5, 1 << 20), 20, 0.3)


async def ask_the_console(node: Secured) -> None:
    path = node.properties()
    settings = ConsoleSettings(
        f"127.0.0.1:{node.sealed}",
        port=0,
        token=TOKEN,
        survey_s=0,
        security=read_security_file(path),
        node_http=read_node_http(path),
        certificate=CA.issue("console").write(node.folder / "console.pem"),
    )
    assert TOKEN not in repr(settings.node_http)
    trust, bearer = ssl.create_default_context(cadata=CA.pem), {"Authorization": f"Bearer {TOKEN}"}
    async with console(settings, system_world()) as (url, server), aiohttp.ClientSession() as session:
        while not server.desk.watch.nodes:
            await server.desk.watch.next_tick()
        assert [one.problem for one in server.desk.watch.nodes] == [None]
        for page in (
            "/",
            "/cluster",
            "/topics",
            "/bucket",
            "/cold",
            "/configuration?node=1",
            "/configuration?node=1&set=1",
        ):
            async with session.get(url + page, headers=bearer, ssl=trust) as answer:
                node.told[f"console {page}"] = await answer.read()
                assert answer.status == 200, page


def dump_its_files(node: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for path in sorted((node.folder / "data").rglob("*")) + sorted(node.bucket.rglob("*")):
        if path.is_file():
            with suppress(FirnError, ValueError, OSError):
                main(["dump", "--json", "--records", str(path)])
            shown = capsys.readouterr()
            node.told[f"dump of {path.relative_to(node.folder)}"] = (shown.out + shown.err).encode()
    dumped = b"".join(text for where, text in node.told.items() if "__cluster_metadata" in where)
    assert b"dave" in dumped, "the records themselves are shown"


def secrets_of(node: Secured) -> dict[str, bytes]:
    made = credential_from(MECHANISM, SALTED, b"geheim-salt", 4096)
    body = [line for line in node.key.read_text().splitlines() if "----" not in line]
    found = {
        "any of ours": b"geheim",
        "salted password": SALTED,
        "stored key": made.stored_key,
        "server key": made.server_key,
        "private key": body[1].encode(),
    }
    for name in ("salted password", "stored key", "server key"):
        found[f"{name}, base64"] = base64.b64encode(found[name])[:-4]
        found[f"{name}, hex"] = found[name].hex().encode()
        found[f"{name}, repr"] = repr(found[name])[2:-1].encode()
    return found


def test_a_secured_node_tells_its_secrets_to_nobody(
    node: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    ask_over_kafka(node)
    log_in_wrongly(node)
    ask_over_http(node)
    asyncio.run(asyncio.wait_for(ask_the_console(node), 60))
    break_its_files(node)
    proc = Path(f"/proc/{node.process.pid}")
    node.told["ps"] = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    described = node.bucket / "cluster.json"
    wait_until("a copy of the metadata", lambda: _omits_two(described), 40)
    end(node.process, 30)
    node.told["printed"] = (node.folder / "printed").read_bytes()
    for path in node.bucket.rglob("*"):
        if path.is_file():
            node.told[f"bucket {path.relative_to(node.bucket)}"] = path.read_bytes()
    assert any("metadata" in where for where in node.told if where.startswith("bucket"))
    dump_its_files(node, capsys)
    assert b"login of" in node.told["printed"]
    assert b"DEBUG" in node.told["printed"]
    found = [
        f"{name} in {where}"
        for name, secret in secrets_of(node).items()
        for where, text in node.told.items()
        if secret in text
    ]
    assert not found


def _omits_two(path: Path) -> bool:
    """Whether `cluster.json` says that the credentials of bob and dave are left out."""
    if not path.exists():
        return False
    return bool(json.loads(path.read_text()).get("metadata", {}).get("omitted_users") == 2)
