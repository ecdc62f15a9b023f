"""Ordinary clients with tokens (OAUTHBEARER): the same from Firn and from Apache Kafka."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaClient
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from tests.support.issuers import ALLOWED, key_file, settings_of, token_of
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import RUNNER, environment
from tests.support.processes import Node, free_port
from tests.support.requirements import need_kafka_tools

pytestmark = [pytest.mark.java, pytest.mark.thorough]
TOPIC = "tokens"
TOKENS: dict[str, Callable[[], str]] = {
    "good": lambda: token_of("alice"),
    "expired": lambda: token_of("alice", life_s=-31),
    "audience": lambda: token_of("alice", aud="other"),
    "issuer": lambda: token_of("alice", iss="https://evil.test"),
    "key": lambda: token_of("alice", "unknown"),
    "unsigned": lambda: "eyJhbGciOiJub25lIn0." + token_of("alice").split(".")[1] + ".",
}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of listeners that take the same tokens: Firn's and Kafka's."""
    need_kafka_tools()
    folder = tmp_path_factory.mktemp("tokens")
    url = key_file(folder, "one")
    settings = {**settings_of(url), "sasl.enabled.mechanisms": "OAUTHBEARER"}
    node, port = Node(folder / "firn"), free_port()
    node.settings |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{node.port},SASL_PLAINTEXT://127.0.0.1:{port}",
        ALLOWED: url,
        **settings,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_OPTS", f"-D{ALLOWED}={url}")
        theirs = KafkaNode(folder / "kafka", settings, heap="512m", secured=("SASL_PLAINTEXT",))
    try:
        node.start()
        for bootstrap in (node.bootstrap, theirs.bootstrap):
            admin = AdminClient({"bootstrap.servers": bootstrap})
            for done in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
                done.result(30)
            producer = Producer({"bootstrap.servers": bootstrap})
            producer.produce(TOPIC, b"hello")
            assert producer.flush(30) == 0
        yield {"firn": f"127.0.0.1:{port}", "kafka": theirs.addresses["SASL_PLAINTEXT"]}
    finally:
        node.stop()
        theirs.stop()


def librdkafka(address: str, token: str) -> str:
    said: list[str] = []
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 3600),
        "error_cb": lambda error: said.append(f"{error.name()} {error.str()}"),
        "log_level": 0,
        "group.id": "librdkafka",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                return str(message.value())
            failed = [one for one in said if "_AUTHENTICATION" in one]
            if failed:
                return failed[0]
        return f"nothing: {said}"
    except KafkaException as e:
        return f"KafkaException {e}"
    finally:
        consumer.close()


class _Async(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def aiokafka(address: str, token: str) -> str:
    """aiokafka takes the answer to a bad token for a login, and then for a cluster without brokers."""

    async def read() -> str:
        client = AIOKafkaClient(
            bootstrap_servers=address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=_Async(token),
        )  # fmt: skip
        try:
            await client.bootstrap()
            return f"{len(client.cluster.brokers())} brokers"
        except Exception as e:
            return f"{type(e).__name__} {e}"
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(read(), 60))


class _Python(PythonTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def kafka_python(address: str, token: str) -> str:
    """kafka-python tries a refused login again until its time is up."""
    try:
        consumer = kafka.KafkaConsumer(
            TOPIC, bootstrap_servers=address, auto_offset_reset="earliest", group_id=None,
            security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", bootstrap_timeout_ms=4000,
            sasl_oauth_token_provider=_Python(token), consumer_timeout_ms=20_000,
        )  # fmt: skip
    except kafka.errors.KafkaTimeoutError as e:
        return f"{type(e).__name__} {e}"
    try:
        return str(next(consumer).value)
    finally:
        consumer.close()


CLIENTS: dict[str, Callable[[str, str], str]] = {
    "librdkafka": librdkafka,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}


def without_places(text: str) -> str:
    """What is said, without addresses, ports, times and ids of brokers."""
    return re.sub(r"127\.0\.0\.1:\d+|port=\d+|after \d+ms|\d+ms|node_id=\S+|\d{4,}", "…", text)


GOOD = {"librdkafka": "b'hello'", "aiokafka": "1 brokers", "kafka-python": "b'hello'"}
BAD = {"librdkafka": "invalid_token", "aiokafka": "0 brokers", "kafka-python": "Unable to bootstrap"}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_same_tokens_bring_the_same_from_firn_and_from_kafka(peers: dict[str, str], client: str) -> None:
    for name, make in TOKENS.items():
        token = make()
        with ThreadPoolExecutor(2) as threads:
            firn, theirs = threads.map(CLIENTS[client], peers.values(), (token, token))
        assert without_places(firn) == without_places(theirs), name
        assert (GOOD if name == "good" else BAD)[client] in firn


def console(peers: dict[str, str], peer: str, folder: Path, token: str) -> subprocess.CompletedProcess[str]:
    """kafka-console-consumer with a token from a file."""
    path, config = folder / f"{peer}.token", folder / f"{peer}.properties"
    path.write_text(token)
    module = "org.apache.kafka.common.security.oauthbearer"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={module}.OAuthBearerLoginModule required;\n"
        f"sasl.login.callback.handler.class={module}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={path.as_uri()}\n"
    )
    command: list[Any] = [RUNNER, "console-consumer", "--bootstrap-server", peers[peer], "--topic", TOPIC]
    command += [
        "--command-config",
        config,
        "--from-beginning",
        "--max-messages",
        "1",
        "--timeout-ms",
        "20000",
    ]
    env = {**environment(), "KAFKA_OPTS": f"-D{ALLOWED}={path.as_uri()}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=env)


def test_kafkas_console_consumer_logs_in_with_a_token_from_a_file(
    peers: dict[str, str], tmp_path: Path
) -> None:
    for token, is_good in ((token_of("alice"), True), (token_of("alice", aud="other"), False)):
        with ThreadPoolExecutor(2) as threads:
            run = partial(console, peers, folder=tmp_path, token=token)
            firn, theirs = threads.map(run, peers)
        assert (firn.returncode, firn.stdout) == (theirs.returncode, theirs.stdout)
        assert ("hello" in firn.stdout) == is_good
        words = r"SaslAuthenticationException: .*"
        assert re.findall(words, firn.stderr)[:1] == re.findall(words, theirs.stderr)[:1]
        assert is_good or '{"status":"invalid_token"}' in firn.stderr
