"""Three Python clients, each asked to do one thing: "ok", or the exception, its code and its words."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiokafka
import confluent_kafka
import kafka
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import admin as confluent
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.net.sasl.oauth import AbstractTokenProvider as SyncTokenProvider

PATIENCE_S: Final = 10.0
VALUE: Final = b"value"


@dataclass(frozen=True)
class Profile:
    """How a client connects; `own` and `trusted` are files of PEM."""

    address: str
    protocol: str
    trusted: str = ""
    own: Path | None = None
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    """for OAUTHBEARER, in place of a password"""

    @property
    def for_librdkafka(self) -> dict[str, Any]:
        lines: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "security.protocol": self.protocol,
            "log_level": 0,
            "reconnect.backoff.ms": 1000,
        }
        if self.protocol.endswith("SSL"):
            lines["ssl.ca.location"] = self.trusted
        if self.own is not None:
            lines |= {"ssl.certificate.location": str(self.own), "ssl.key.location": str(self.own)}
        if self.token:
            lines |= {"sasl.mechanism": "OAUTHBEARER"}
            lines["oauth_cb"] = lambda _: (self.token, time.time() + 600)
        elif self.mechanism:
            lines |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user}
            lines["sasl.password"] = self.password
        return lines

    def for_python(self, provider: Callable[[str], Any]) -> dict[str, Any]:
        """What aiokafka and kafka-python call alike; `provider` makes who brings a token."""
        given: dict[str, Any] = {"bootstrap_servers": self.address, "security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            given["ssl_context"] = context = ssl.create_default_context(cafile=self.trusted)
            if self.own is not None:
                context.load_cert_chain(str(self.own))
        if self.token:
            given |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider(self.token)}
        elif self.mechanism:
            given |= {"sasl_mechanism": self.mechanism, "sasl_plain_username": self.user}
            given["sasl_plain_password"] = self.password
        return given


def plain(text: str) -> str:
    """The text without ports, times, numbers of connections and what each library of TLS calls its alert."""
    text = re.sub(r"(localhost|127\.0\.0\.1|::1)(', |:)[0-9]+|\[IPv[46] \('[^]]*\]", "HOST", text)
    text = re.sub(r"error:[0-9A-F]+:SSL routines::[^:]*alert[^:]*: SSL alert number [0-9]+", "ALERT", text)
    text = re.sub(r"(tlsv13 |ssl/tls |tlsv1 |sslv3 )?alert [a-z ]+|[A-Z0-9]+_ALERT_[A-Z_]+", "ALERT", text)
    # Kafka prints the request as Java sees it, and librdkafka cuts that off.
    text = re.sub(r"Request Request\(.*", "REQUEST", text)
    # Firn's OpenSSL sends the authority's certificate along, which Java does not.
    text = re.sub(
        r"self-signed certificate in certificate chain", "unable to get local issuer certificate", text
    )
    text = re.sub(r"\(after [0-9]+ms[^)]*\)", "(after)", text)
    text = text.replace("[none]", "[HOST<-N]")
    text = re.sub(r"0x[0-9a-f]+|(?<==)[0-9a-f-]{8,}|[0-9]+\.[0-9]+|[0-9]{3,}", "N", text)
    return re.sub(r"\s+", " ", text).strip()


class Refused(Exception):
    """librdkafka's error, which is no exception of its own everywhere."""

    def __init__(self, error: confluent_kafka.KafkaError) -> None:
        super().__init__(f"{error.name()}: {plain(error.str())}")


class Confluent:
    """confluent-kafka, that is librdkafka."""

    name = "confluent-kafka"

    def __init__(self, profile: Profile) -> None:
        self.errors: list[confluent_kafka.KafkaError] = []
        self.common = {**profile.for_librdkafka, "error_cb": self.errors.append}
        self.admin_client: Any = None

    def ask(self, act: str, name: str) -> str:
        try:
            return str(getattr(self, act)(name) or "ok")
        except Refused as e:
            return str(e)
        except confluent_kafka.KafkaException as e:
            return str(Refused(e.args[0]))
        except TimeoutError:
            return "nothing, for so long"

    def _wait(self, poll: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (found := poll()) is not None:
                return found
            for error in self.errors:
                if error.name() != "_ALL_BROKERS_DOWN":
                    raise Refused(error)
        raise TimeoutError

    def write(self, topic: str) -> None:
        told: list[Any] = []
        producer = confluent_kafka.Producer({**self.common, "enable.idempotence": True})
        producer.produce(topic, VALUE, partition=0, on_delivery=lambda error, _: told.append(error or ""))

        def poll() -> Any:
            producer.poll(0.1)
            return told[0] if told else None

        error = self._wait(poll)
        producer.purge()
        if error:
            raise Refused(error)

    def _first(self, group: str, begin: Callable[[Any], None]) -> Any:
        consumer = confluent_kafka.Consumer(
            {**self.common, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        begin(consumer)
        try:
            message = self._wait(lambda: consumer.poll(0.1))
            if message.error():
                raise Refused(message.error())
            return "" if message.value() == VALUE else "another value"
        finally:
            consumer.close()

    def read(self, topic: str) -> Any:
        part = confluent_kafka.TopicPartition(topic, 0, 0)
        return self._first("open", lambda consumer: consumer.assign([part]))

    def join(self, group: str) -> Any:
        return self._first(group, lambda consumer: consumer.subscribe(["open"]))

    def subscribe(self, topic: str) -> Any:
        return self._first("open", lambda consumer: consumer.subscribe([topic]))

    def commit(self, group: str) -> None:
        consumer = confluent_kafka.Consumer({**self.common, "group.id": group})
        consumer.commit(offsets=[confluent_kafka.TopicPartition("open", 0, 1)], asynchronous=False)

    @property
    def admin(self) -> Any:
        self.admin_client = self.admin_client or confluent.AdminClient(self.common)
        return self.admin_client

    @staticmethod
    def _each(futures: dict[Any, Any]) -> Any:
        return next(one.result(PATIENCE_S) for one in futures.values())

    def topics(self, _: str) -> str:
        return str(sorted(self.admin.list_topics(timeout=PATIENCE_S).topics))

    def create(self, topic: str) -> None:
        self._each(self.admin.create_topics([confluent.NewTopic(topic, 1, 1)]))

    def delete(self, topic: str) -> None:
        self._each(self.admin.delete_topics([topic]))

    def grow(self, topic: str) -> None:
        self._each(self.admin.create_partitions([confluent.NewPartitions(topic, 5)]))

    def trim(self, topic: str) -> None:
        self._each(self.admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 1)]))

    def configs(self, topic: str) -> None:
        self._each(self.admin.describe_configs([confluent.ConfigResource("topic", topic)]))

    def broker_configs(self, node_id: str) -> None:
        self._each(self.admin.describe_configs([confluent.ConfigResource("broker", node_id)]))

    def configure(self, topic: str) -> None:
        entry = confluent.ConfigEntry(
            "retention.ms", "86400000", incremental_operation=confluent.AlterConfigOpType.SET
        )
        resource = confluent.ConfigResource("topic", topic, incremental_configs=[entry])
        self._each(self.admin.incremental_alter_configs([resource]))

    def acls(self, _: str) -> str:
        every = confluent.AclBindingFilter(
            confluent.ResourceType.ANY, None, confluent.ResourcePatternType.ANY, None, None,
            confluent.AclOperation.ANY, confluent.AclPermissionType.ANY,
        )  # fmt: skip
        return str(self.admin.describe_acls(every).result(PATIENCE_S))

    def grant(self, topic: str) -> None:
        binding = confluent.AclBinding(
            confluent.ResourceType.TOPIC, topic, confluent.ResourcePatternType.LITERAL, "User:bob", "*",
            confluent.AclOperation.ALL, confluent.AclPermissionType.ALLOW,
        )  # fmt: skip
        self._each(self.admin.create_acls([binding]))

    def add_user(self, name: str) -> None:
        info = confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_256, 4096)
        made = confluent.UserScramCredentialUpsertion(name, info, b"secret")
        self._each(self.admin.alter_user_scram_credentials([made]))

    def group(self, group: str) -> None:
        self._each(self.admin.describe_consumer_groups([group]))

    def delete_group(self, group: str) -> None:
        self._each(self.admin.delete_consumer_groups([group]))

    def groups(self, _: str) -> str:
        found = self.admin.list_consumer_groups().result(PATIENCE_S)
        return str(sorted(one.group_id for one in found.valid)) + "".join(map(str, found.errors))

    def offsets(self, group: str) -> None:
        self._each(
            self.admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])
        )

    def ends(self, topic: str) -> None:
        part = confluent_kafka.TopicPartition(topic, 0)
        self._each(self.admin.list_offsets({part: confluent.OffsetSpec.latest()}))


class Said(logging.Handler):
    """What a library logs as an error, as its exceptions alone do not tell why it could not connect."""

    def __init__(self, library: str) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []
        self._logger = logging.getLogger(library)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(plain(record.getMessage()))

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def and_told(self, error: BaseException) -> str:
        """Class, Kafka's code and words of an exception, and the line of the log that tells most."""
        code = getattr(error, "errno", None)
        number = f"({code})" if isinstance(code, int) else ""
        # kafka-python may see a connection closed before it reads why: among several tries one tells that.
        reasons = [line for line in self.lines if not line.endswith("socket disconnected")]
        log = f" / {reasons[0]}" if reasons else ""
        return f"{type(error).__name__}{number}: {plain(str(error))}{log}"


class _Token(SyncTokenProvider):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class _AioToken(AioTokenProvider):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    async def token(self) -> str:
        return self._token


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def __init__(self, profile: Profile) -> None:
        self.common = {**profile.for_python(_Token), "bootstrap_timeout_ms": 3000}

    def ask(self, act: str, name: str) -> str:
        if not hasattr(self, act):
            return ""
        with Said("kafka") as said:
            try:
                return str(getattr(self, act)(name) or "ok")
            except Exception as e:
                return said.and_told(e)

    def write(self, topic: str) -> None:
        producer = kafka.KafkaProducer(**self.common, max_block_ms=6000, delivery_timeout_ms=40_000)
        try:
            producer.send(topic, VALUE, partition=0).get(PATIENCE_S)
        finally:
            producer.close(1)

    def _first(self, group: str | None, begin: Callable[[Any], None]) -> Any:
        consumer = kafka.KafkaConsumer(
            **self.common, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
            consumer_timeout_ms=int(PATIENCE_S * 1000),
        )  # fmt: skip
        begin(consumer)
        try:
            return "" if next(consumer).value == VALUE else "another value"
        finally:
            consumer.close()

    def read(self, topic: str) -> Any:
        return self._first(None, lambda consumer: consumer.assign([kafka.TopicPartition(topic, 0)]))

    def join(self, group: str) -> Any:
        return self._first(group, lambda consumer: consumer.subscribe(["open"]))

    def subscribe(self, topic: str) -> Any:
        return self._first("open", lambda consumer: consumer.subscribe([topic]))

    def commit(self, group: str) -> None:
        consumer = kafka.KafkaConsumer(**self.common, group_id=group)
        place = {kafka.TopicPartition("open", 0): kafka.OffsetAndMetadata(1, "", -1)}
        try:
            consumer.commit(place)
        finally:
            consumer.close(autocommit=False)

    def _admin(self, do: Callable[[Any], Any]) -> Any:
        admin = kafka.KafkaAdminClient(**self.common)
        try:
            return do(admin)
        finally:
            admin.close()

    def topics(self, _: str) -> str:
        return str(self._admin(lambda admin: sorted(admin.list_topics())))

    def create(self, topic: str) -> None:
        self._admin(lambda admin: admin.create_topics([NewTopic(topic, 1, 1)]))

    def delete(self, topic: str) -> None:
        self._admin(lambda admin: admin.delete_topics([topic]))

    def configs(self, topic: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        self._admin(lambda admin: admin.describe_configs([resource]))

    def group(self, group: str) -> None:
        self._admin(lambda admin: admin.describe_groups([group]))

    def delete_group(self, group: str) -> None:
        self._admin(lambda admin: admin.delete_groups([group]))

    def users(self, name: str) -> str:
        return plain(str(self._admin(lambda admin: admin.describe_user_scram_credentials([name]))))

    def acls(self, _: str) -> str:
        every = ACLFilter(
            None, None, ACLOperation.ANY, ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )  # fmt: skip
        return plain(str(self._admin(lambda admin: admin.describe_acls(every))))

    def offsets(self, group: str) -> None:
        self._admin(lambda admin: admin.list_group_offsets(group))


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def __init__(self, profile: Profile) -> None:
        self.common = profile.for_python(_AioToken)

    def ask(self, act: str, name: str) -> str:
        if not hasattr(self, act):
            return ""
        with Said("aiokafka") as said:
            try:
                return str(asyncio.run(asyncio.wait_for(getattr(self, act)(name), PATIENCE_S + 2)) or "ok")
            except Exception as e:
                return said.and_told(e)

    async def write(self, topic: str) -> None:
        producer = aiokafka.AIOKafkaProducer(**self.common, enable_idempotence=True, request_timeout_ms=8000)
        try:
            await producer.start()
            await producer.send_and_wait(topic, VALUE, partition=0)
        finally:
            await producer.stop()

    async def _first(self, group: str | None, begin: Callable[[Any], None]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            **self.common, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        try:
            await consumer.start()
            begin(consumer)
            return "" if (await consumer.getone()).value == VALUE else "another value"
        finally:
            await consumer.stop()

    async def read(self, topic: str) -> Any:
        return await self._first(None, lambda consumer: consumer.assign([aiokafka.TopicPartition(topic, 0)]))

    async def join(self, group: str) -> Any:
        return await self._first(group, lambda consumer: consumer.subscribe(["open"]))

    async def subscribe(self, topic: str) -> Any:
        return await self._first("open", lambda consumer: consumer.subscribe([topic]))

    async def commit(self, group: str) -> None:
        consumer = aiokafka.AIOKafkaConsumer(**self.common, group_id=group, enable_auto_commit=False)
        try:
            await consumer.start()
            part = aiokafka.TopicPartition("open", 0)
            consumer.assign([part])
            await consumer.commit({part: 1})
        finally:
            await consumer.stop()

    async def _admin(self, act: str, *given: Any) -> Any:
        admin = AIOKafkaAdminClient(**self.common)
        try:
            await admin.start()
            return await getattr(admin, act)(*given)
        finally:
            await admin.close()

    async def topics(self, _: str) -> str:
        return str(sorted(await self._admin("list_topics")))

    async def create(self, topic: str) -> str:
        return plain(str(await self._admin("create_topics", [AioTopic(topic, 1, 1)])))

    async def delete(self, topic: str) -> str:
        return plain(str(await self._admin("delete_topics", [topic])))

    async def configs(self, topic: str) -> str:
        (told,) = await self._admin("describe_configs", [AioResource(AioType.TOPIC, topic)])
        return str([one[:2] for one in told.resources])

    async def group(self, group: str) -> str:
        (told,) = await self._admin("describe_consumer_groups", [group])
        return str([one[:3] for one in told.groups])

    async def offsets(self, group: str) -> str:
        return str(await self._admin("list_consumer_group_offsets", group))


CLIENTS: Final[Iterable[type[Any]]] = (Confluent, AioKafka, KafkaPython)
