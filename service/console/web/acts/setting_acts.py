"""Acts on settings: of a topic, of a broker, of all brokers. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.base.errors import ConfigError
from service.client.admin import BROKER_RESOURCE, TOPIC_RESOURCE, ChangingCluster
from service.client.admin_models import ConfigEntry
from service.client.setting_changes import SettingChange, SettingsOwner, alter_settings, deletes, sets
from service.console.web.acts import fields
from service.console.web.acts.act import Act, ActField, ActForm, ActOutcome, ActPreview, ActWorld, word_of
from service.console.web.acts.topic_acts import SETTINGS_HINT, described
from service.console.web.markup import link

HIDDEN: Final = "[hidden]"
ALL_BROKERS: Final = "all brokers"
_DEFAULT: Final = "back to the default"


class SettingsChange(Act):
    """Incremental changes of settings: all of them are made, or none."""

    event = "settings-changed"
    event_words = "settings changed"
    verb = "Change the settings"

    def __init__(self, values: Mapping[str, str], owner: SettingsOwner, where: str) -> None:
        """`where` is the page with the settings."""
        values_set = fields.settings(values, "set", "Set")
        keys = fields.keys(values, "unset", "Back to the default")
        if both := sorted({*values_set} & {*keys}):
            raise ConfigError(f"{both[0]} is to be set, and to go back to its default")
        self._owner = owner
        self._changes: list[SettingChange] = [*sets(values_set), *deletes(keys)]
        self._where = where
        if not self._changes:
            raise ConfigError("What is to change? No setting is named")

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        alter_settings(cluster, self._owner, self._changes, dry_run=True)
        known = {one.name: one for one in cluster.entries(self._owner.kind, self._owner.name)}
        # Another topic of the name may have the same settings.
        is_topic = self._owner.kind == TOPIC_RESOURCE
        topic_id = described(cluster, self._owner.name).topic_id if is_topic else None
        rows, items = [], []
        for key, _, value in self._changes:
            entry = known.get(key)
            then = _DEFAULT if value is None else HIDDEN if _is_secret(entry) else value
            rows.append((key, _shown(entry), then))
            items.append(f"{self._owner.words}: {key}" + ("" if value is None else f"={then}"))
        notes = [
            f"{entry.name} is read at the start of a node: it takes effect with a restart."
            for key, *_ in self._changes
            if (entry := known.get(key)) is not None and entry.is_read_only
        ]
        return ActPreview(
            word_of(self._owner.name or ALL_BROKERS),
            tuple(items),
            (("Settings of", self._owner.words),),
            ("Setting", "Now", "Then"),
            tuple(rows),
            notes=tuple(notes),
            seen=(topic_id, *((key, *_seen(known.get(key))) for key, *_ in self._changes)),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        alter_settings(cluster, self._owner, self._changes)
        return ActOutcome(f"The settings of {self._owner.words} are changed.", link=("Settings", self._where))


def _is_secret(entry: ConfigEntry | None) -> bool:
    """Return whether a value must not be shown. Of a key that is not there yet nobody knows."""
    return entry is None or entry.is_sensitive


def _shown(entry: ConfigEntry | None) -> str:
    if entry is None:
        return "not set"
    if entry.is_sensitive:
        return HIDDEN
    return "not set" if entry.value is None else entry.value or '""'


def _seen(entry: ConfigEntry | None) -> tuple[str | None, int]:
    return (None, 0) if entry is None else (entry.value, entry.source)


def _of_topic(values: Mapping[str, str], _: ActWorld) -> SettingsChange:
    name = fields.name(values, "topic", "Topic")
    owner = SettingsOwner(TOPIC_RESOURCE, name, f"topic {name}")
    return SettingsChange(values, owner, link("/configuration", topic=name))


def _of_broker(values: Mapping[str, str], _: ActWorld) -> SettingsChange:
    number = fields.whole(values, "broker", "Broker", 0, default=-1)
    if number < 0:
        return SettingsChange(values, SettingsOwner(BROKER_RESOURCE, "", ALL_BROKERS), "/configuration")
    owner = SettingsOwner(BROKER_RESOURCE, str(number), f"broker {number}")
    return SettingsChange(values, owner, link("/configuration", node=number))


_CHANGES: Final = (
    ActField("set", "Set", "lines", SETTINGS_HINT, 32_768),
    ActField("unset", "Back to the default", "lines", "KEY, one a line", 32_768),
)
TOPIC_SETTINGS: Final = ActForm(
    "topic-settings",
    "Change settings of a topic",
    "/topics",
    "Other settings stay as they are. All changes are made, or none.",
    (ActField("topic", "Topic", required=True), *_CHANGES),
    _of_topic,
)
BROKER_SETTINGS: Final = ActForm(
    "broker-settings",
    "Change settings of brokers",
    "/configuration",
    "Other settings stay as they are. All changes are made, or none.",
    (ActField("broker", "Broker", "number", "its id; empty: all brokers", 10), *_CHANGES),
    _of_broker,
)
FORMS: Final = (TOPIC_SETTINGS, BROKER_SETTINGS)
