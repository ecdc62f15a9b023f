"""Settings of a node and of a topic: parsed, checked, frozen. [P]

`BrokerConfig` is made from string properties once, at start; `LogConfig` combines one topic's overrides with
the node's defaults. All errors of a set of properties are in one `ConfigError`, a line for each key. Source
of the rules: Kafka `KafkaConfig.validateValues` and `LogConfig.validate`.

>>> broker = BrokerConfig.from_properties({"log.retention.hours": "2"})
>>> topic_config({"segment.bytes": "1048576"}, broker).retention_ms
7200000
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig, read_cluster
from service.config.foreign import refusal
from service.config.keys import LONG_MAX, Value, invalid
from service.config.listeners import Listener
from service.config.overrides import check_dynamic, parse_node
from service.config.parsing import effective, parse_value, with_node_id
from service.config.passwords import Password
from service.config.quotas import QuotaConfig, read_quotas
from service.config.replication import ReplicationConfig, read_replication
from service.config.suggestions import did_you_mean
from service.config.tables import BROKER_KEYS, S3_SCHEMES, TOPIC_KEYS
from service.config.tables.authorizer import principals
from service.config.tables.groups import GROUPS, OFFSETS_TOPIC
from service.config.tables.transactions import TRANSACTIONS
from service.config.tokens import TokenConfig, read_tokens

__all__ = [
    "AS_TOTAL",
    "UNLIMITED",
    "BrokerConfig",
    "Listener",
    "LogConfig",
    "topic_config",
    "validate_topic_change",
]

AS_TOTAL: Final = -2
"""Value of `local.retention.*` that means the total retention."""
UNLIMITED: Final = -1

_HTTP_NEEDS: Final = {
    "firn.http.ssl.keystore.location": "firn.http.listener",
    "firn.http.ssl.key.password": "firn.http.ssl.keystore.location",
    "firn.http.token.file": "firn.http.listener",
}
"""Key that another one needs to have an effect."""
_OF_THE_CLUSTER: Final = (
    "process_roles", "log_dirs", "listeners", "advertised_listeners", "controller_listeners",
)  # fmt: skip
"""Fields that `BrokerConfig` copies from `ClusterConfig`."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Effective settings of one topic. Fields are Kafka's topic keys, in their units (bytes, ms)."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    min_insync_replicas: int = 1
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    tail_enable: bool = True
    merge_enable: bool = True
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()

    @property
    def is_compacted(self) -> bool:
        """True if only the last record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def gives_up_archive(self) -> bool:
        """True if tiering is off and the rest of the archive is to be deleted."""
        return self.remote_log_delete_on_disable and not self.remote_storage_enable

    @property
    def effective_segment_ms(self) -> int:
        """Age at which a segment is sealed; for a compacted topic at most the maximal compaction lag."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def effective_local_retention_ms(self) -> int:
        """Time that sealed segments stay on disk, -1 for ever; the total retention unless tiered."""
        if not self.remote_storage_enable or self.local_retention_ms == AS_TOTAL:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """Bytes that stay on disk, -1 without bound; the total retention unless the topic is tiered."""
        if not self.remote_storage_enable or self.local_retention_bytes == AS_TOTAL:
            return self.retention_bytes
        return self.local_retention_bytes


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of one node. A field is its key with `_` for `.` and without `firn.`.

    `listeners` are the broker's, without the controller's; a port 0 stays 0 here, although the socket has
    another one once bound. `log` has the settings of a topic without overrides. `static`, `dynamic` and
    `dynamic_default` are the properties as given: in the file and on the command line; in the metadata log
    for this broker; and there for all brokers.
    """

    node_id: int
    cluster: ClusterConfig
    process_roles: tuple[str, ...]
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    controller_listeners: tuple[Listener, ...]
    cluster_id: str | None
    broker_rack: str | None
    log_format: str
    log_dirs: tuple[Path, ...]
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    socket_request_max_bytes: int
    connections_max_idle_ms: int
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    queued_max_request_bytes: int
    request_read_timeout_ms: int
    send_timeout_ms: int
    fetch_max_bytes: int
    max_request_partition_size_limit: int
    max_incremental_fetch_session_cache_slots: int
    fetch_session_cache_partitions: int
    http_listener: str | None
    http_ssl_keystore_location: str | None
    http_ssl_key_password: Password | None
    http_token_file: str | None
    metrics_partitions_enable: bool
    metrics_partitions_max: int
    metrics_topics_max: int
    metrics_groups_max: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    disk_watermarks_enable: bool
    disk_upload_percent: int
    disk_shrink_percent: int
    disk_throttle_percent: int
    disk_refuse_percent: int
    disk_margin_percent: int
    disk_counted_bytes: int
    disk_reserve_bytes: int
    disk_throttle_max_ms: int
    disk_check_interval_ms: int
    producer_id_expiration_ms: int
    metadata_log_segment_bytes: int
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    remote_log_manager_task_interval_ms: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_reader_threads: int
    remote_fetch_max_wait_ms: int
    remote_list_offsets_request_timeout_ms: int
    remote_url: str | None
    remote_s3_endpoint: str | None
    remote_s3_region: str | None
    remote_s3_sse: str | None
    remote_s3_sse_kms_key_id: str | None
    remote_cache_bytes: int
    remote_cache_dir: str | None
    remote_cache_dir_bytes: int
    remote_chunk_bytes: int
    remote_object_grace_ms: int
    cut_interval_ms: int
    cut_hold_max_ms: int
    cut_hold_longest_ms: int
    displaced_produce: str
    tail_base_max_bytes: int
    tail_wait_ms: int
    merge_small_bytes: int
    merge_min_age_ms: int
    rewrite_object_bytes: int
    remote_unfenced_allow: bool
    remote_metadata_credentials: bool
    remote_recover: bool
    max_inflated_batch_bytes: int
    max_inflated_request_bytes: int
    replication: ReplicationConfig
    quotas: QuotaConfig
    tokens: TokenConfig
    groups: Mapping[str, Value]
    """the keys of groups and of `__consumer_offsets`, by full name"""
    transactions: Mapping[str, Value]
    """the keys of transactions and of `__transaction_state`, by full name"""
    log: LogConfig
    topic_defaults: Mapping[str, Value]
    static: Mapping[str, str] = dataclasses.field(repr=False)
    dynamic: Mapping[str, str] = dataclasses.field(repr=False)
    dynamic_default: Mapping[str, str] = dataclasses.field(repr=False)

    @property
    def super_principals(self) -> frozenset[str]:
        """Principals that may do everything."""
        return frozenset(principals(self.super_users))

    @property
    def remote_storage_enabled(self) -> bool:
        """True if this node has a cold tier."""
        return self.remote_url is not None

    @staticmethod
    def from_properties(
        properties: Mapping[str, str],
        *,
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """Parse and check properties; raise `ConfigError` with one line for each error.

        What two or more keys make wrong together is found only where each of them has a valid value.
        """
        properties = with_node_id(properties)
        own, everyone = dict(dynamic or {}), dict(dynamic_default or {})
        given = {**effective(properties), **everyone, **own}
        problems: list[str] = []
        strangers: list[str] = []
        values = parse_node(given, problems, strangers)
        strangers += [
            f"{name} can only be set while the node runs, with kafka-configs, not in its properties"
            for name in properties
            if name in BROKER_KEYS and not BROKER_KEYS[name].static
        ]
        if problems:
            raise ConfigError(*problems, *strangers)
        fields = _node_fields(values, problems)
        topic_defaults = _topic_defaults(given, values)
        problems.extend(_node_conflicts(values, topic_defaults))
        if problems or strangers:
            raise ConfigError(*problems, *strangers)
        return BrokerConfig(
            **fields,
            log=_log_config(topic_defaults),
            topic_defaults=topic_defaults,
            static=dict(properties),
            dynamic=own,
            dynamic_default=everyone,
        )

    def with_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> BrokerConfig:
        """Return this node's settings with these of the metadata log, for it alone and for all brokers.

        Raises `ConfigError`, with Kafka's text, for a key that cannot change while the node runs.
        """
        check_dynamic(broker, default)
        changed = BrokerConfig.from_properties(self.static, dynamic=broker, dynamic_default=default)
        cluster = dataclasses.replace(
            changed.cluster,
            **{name: getattr(self.cluster, name) for name in ("log_dirs", "metadata_log_dir")},
            advertised_listeners=self.cluster.advertised_listeners,
            advertised_controller_listeners=self.cluster.advertised_controller_listeners,
        )
        return dataclasses.replace(
            changed, cluster=cluster, log_dirs=self.log_dirs, advertised_listeners=self.advertised_listeners
        )

    def check_threads(self, changed: BrokerConfig) -> None:
        """Raise `ConfigError` if a running node may not change to the thread counts of `changed` (Kafka
        `LogCleaner.validateReconfiguration`, `DynamicThreadPool.validateReconfiguration`)."""
        self._check_cleaner_threads(changed.log_cleaner_threads)
        before, fetchers = self.replication.num_replica_fetchers, changed.replication.num_replica_fetchers
        why = ""
        if fetchers < before // 2:
            why = f"value should be at least half the current value {before}"
        elif fetchers > before * 2:
            why = f"value should not be greater than double the current value {before}"
        if why:
            what = f"Dynamic thread count update validation failed for num.replica.fetchers={fetchers}"
            raise ConfigError(f"{what}, {why}")

    def _check_cleaner_threads(self, threads: int) -> None:
        before = self.log_cleaner_threads
        if threads == before:
            return
        if threads < 1:
            raise ConfigError("Log cleaner threads should be at least 1")
        if threads < before // 2:
            raise ConfigError(
                f"Log cleaner threads cannot be reduced to less than half the current value {before}"
            )
        if threads > before * 2:
            raise ConfigError(
                f"Log cleaner threads cannot be increased to more than double the current value {before}"
            )

    def placed(self, directory: Path, host: str) -> BrokerConfig:
        """Return these settings for a machine called `host`, with the working directory `directory`.

        Log directories become absolute; listeners on every interface are advertised by the machine's name.
        """
        cluster = self.cluster.placed(directory, host)
        return dataclasses.replace(
            self,
            cluster=cluster,
            log_dirs=cluster.log_dirs,
            advertised_listeners=cluster.advertised_listeners,
        )


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """Return the effective settings of a topic with these overrides on this node.

    Raises `ConfigError` for an unknown key, an invalid value or a contradiction between values.
    """
    values = topic_values(overrides, broker)
    for problem in _topic_conflicts(values, broker.remote_storage_enabled):
        raise ConfigError(problem)
    return _log_config(values)


def validate_topic_change(
    current: Mapping[str, str], proposed: Mapping[str, str], broker: BrokerConfig
) -> LogConfig:
    """Return `topic_config` of the proposed overrides; raise `ConfigError` if they switch tiered storage off
    without agreeing to the deletion of remote data."""
    config = topic_config(proposed, broker)
    if (
        current.get("remote.storage.enable", "false").strip().lower() == "true"
        and not config.remote_storage_enable
        and not config.remote_log_delete_on_disable
    ):
        raise ConfigError(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
            "remote data and turn to read only, please set `remote.storage.enable=true,"
            "remote.log.copy.disable=true`. If you want to disable remote storage and delete all remote "
            "data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
    return config


def topic_values(overrides: Mapping[str, str], broker: BrokerConfig) -> dict[str, Value]:
    """Return typed values of every topic key: overrides over the node's defaults. Raises `ConfigError`."""
    for name in overrides:
        if name not in TOPIC_KEYS:
            reason = refusal(name)
            hint = f": {reason}" if reason else did_you_mean(name, TOPIC_KEYS)
            raise ConfigError(f"Unknown topic config name: {name}{hint}")
    values = dict(broker.topic_defaults)
    values.update((name, parse_value(TOPIC_KEYS[name], text)) for name, text in overrides.items())
    return values


def _node_fields(values: Mapping[str, Value], problems: list[str]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(BrokerConfig)}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        field = name.removeprefix("firn.").replace(".", "_")
        if field in known:
            fields[field] = value
    fields["replication"] = read_replication(values)
    fields["quotas"] = read_quotas(values)
    fields["tokens"] = read_tokens(values)
    fields["groups"] = {one.name: values[one.name] for one in (*OFFSETS_TOPIC, *GROUPS)}
    fields["transactions"] = {one.name: values[one.name] for one in TRANSACTIONS}
    try:
        cluster = read_cluster(values)
    except ConfigError as e:
        problems.extend(e.problems)
    else:
        fields.update({name: getattr(cluster, name) for name in _OF_THE_CLUSTER}, cluster=cluster)
    return fields


def _topic_defaults(given: Mapping[str, str], values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the default of every topic key: its strongest synonym that is set, in the topic key's units."""
    defaults: dict[str, Value] = {}
    for key in TOPIC_KEYS.values():
        defaults[key.name] = key.default
        for synonym in key.synonyms:
            if synonym.name in given:
                value = values[synonym.name]
                if synonym.factor != 1:
                    assert isinstance(value, int)
                    value = value * synonym.factor if value >= 0 else UNLIMITED
                defaults[key.name] = value
                break
    return defaults


def _log_config(values: Mapping[str, Value]) -> LogConfig:
    fields: dict[str, Any] = {
        name.removeprefix("firn.").replace(".", "_"): value for name, value in values.items()
    }
    del fields["preallocate"]  # always false if valid
    small = fields.pop("internal_segment_bytes")
    if small is not None:
        fields["segment_bytes"] = small
    fields["cleanup_policy"] = ",".join(fields["cleanup_policy"])
    return LogConfig(**fields)


def _node_conflicts(values: Mapping[str, Value], topic: Mapping[str, Value]) -> Iterable[str]:
    number = _number_of(values)
    if _number_of(topic)("retention.ms") == 0:
        yield "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    queued = number("queued.max.request.bytes")
    if 0 < queued < number("socket.request.max.bytes"):
        yield "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    yield from _cleaner_conflicts(values)
    yield from _group_conflicts(number)
    yield from _disk_conflicts(values)
    for name, needed in _HTTP_NEEDS.items():
        if values[name] is not None and values[needed] is None:
            yield f"{name} has no effect without {needed}"
    url = values["firn.remote.url"]
    for name in ("firn.remote.s3.endpoint", "firn.remote.s3.region", "firn.remote.s3.sse"):
        if values[name] is not None and str(url).partition("://")[0] not in S3_SCHEMES:
            yield f"{name} has no effect without firn.remote.url=s3://…"
    if values["firn.remote.s3.sse.kms.key.id"] is not None and values["firn.remote.s3.sse"] != "aws:kms":
        yield "firn.remote.s3.sse.kms.key.id has no effect without firn.remote.s3.sse=aws:kms"
    if number("firn.remote.cache.bytes") < 2 * number("firn.remote.chunk.bytes"):
        yield "firn.remote.cache.bytes must hold at least two chunks of firn.remote.chunk.bytes"
    if values["firn.remote.cache.dir"] is not None and url is None:
        yield "firn.remote.cache.dir has no effect without firn.remote.url"
    if url is not None:
        yield from _retention_conflicts(topic)


def _cleaner_conflicts(values: Mapping[str, Value]) -> Iterable[str]:
    number = _number_of(values)
    factor, rate = values["log.cleaner.io.buffer.load.factor"], values["log.cleaner.io.max.bytes.per.second"]
    assert isinstance(factor, float)
    assert isinstance(rate, float)
    slots = number("log.cleaner.dedupe.buffer.size") // max(number("log.cleaner.threads"), 1) // 24
    if slots * factor <= 1:
        yield (
            "log.cleaner.dedupe.buffer.size, log.cleaner.threads and log.cleaner.io.buffer.load.factor leave "
            "no room for a single key"
        )
    if rate <= 0:
        yield "log.cleaner.io.max.bytes.per.second must be greater than 0"


def _group_conflicts(number: Callable[[str], int]) -> Iterable[str]:
    """Check the bounds as Kafka's `GroupCoordinatorConfig.validate` does."""
    for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        own, least, most = (f"group.consumer.{bound}{what}" for bound in ("", "min.", "max."))
        if number(most) < number(least):
            yield f"{most} must be greater than or equal to {least}"
        elif number(own) < number(least):
            yield f"{own} must be greater than or equal to {least}"
        elif number(own) > number(most):
            yield f"{own} must be less than or equal to {most}"
    if number("group.consumer.heartbeat.interval.ms") >= number("group.consumer.session.timeout.ms"):
        yield "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms"
    if number("group.max.session.timeout.ms") < number("group.min.session.timeout.ms"):
        yield "group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms"


def _disk_conflicts(values: Mapping[str, Value]) -> Iterable[str]:
    number = _number_of(values)
    steps = [f"firn.disk.{step}.percent" for step in ("upload", "shrink", "throttle", "refuse")]
    for before, after in pairwise(steps):
        if number(before) > number(after):
            yield f"{before} ({number(before)}) must not be more than {after} ({number(after)})"
    if number("firn.disk.margin.percent") >= number(steps[0]):
        yield f"firn.disk.margin.percent must be less than {steps[0]}: else the step never ends"


def _topic_conflicts(values: Mapping[str, Value], remote_storage_enabled: bool) -> Iterable[str]:
    number = _number_of(values)
    least, most = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if least > most:
        yield (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if not values["remote.storage.enable"]:
        return
    if not remote_storage_enabled:
        yield (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage. "
            "Set firn.remote.url on every broker to have it."
        )
    policies = values["cleanup.policy"]
    assert isinstance(policies, tuple)
    if "compact" in policies:
        yield (
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being "
            "an empty list."
        )
    yield from _retention_conflicts(values)
    if values["remote.log.copy.disable"]:
        for unit in ("bytes", "ms"):
            if values[f"local.retention.{unit}"] not in (AS_TOTAL, values[f"retention.{unit}"]):
                yield (
                    f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and "
                    f"`retention.{unit}` must be set to the identical value because there will be no more "
                    "logs copied to the remote storage."
                )


def _retention_conflicts(values: Mapping[str, Value]) -> Iterable[str]:
    number = _number_of(values)
    for unit in ("bytes", "ms"):
        total, local = number(f"retention.{unit}"), number(f"local.retention.{unit}")
        if total < 0 or local == AS_TOTAL:
            continue
        name = f"local.retention.{unit}"
        if local == UNLIMITED:
            yield str(
                invalid(name, local, f"Value must not be -1 as retention.{unit} value is set as {total}.")
            )
        elif local > total:
            yield str(
                invalid(name, local, f"Value must not be more than retention.{unit} property value: {total}")
            )


def _number_of(values: Mapping[str, Value]) -> Callable[[str], int]:
    def number(name: str) -> int:
        value = values[name]
        assert isinstance(value, int)
        return value

    return number
