"""Parts of the rows of the key tables: types, units and constructors. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import ConfigKey, ConfigType, Synonym, Value

BOOLEAN, INT, LONG, DOUBLE, STRING, LIST, CLASS, PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.STRING,
    ConfigType.LIST,
    ConfigType.CLASS,
    ConfigType.PASSWORD,
)
MIB: Final = 1 << 20
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
_FACTORS: Final = {"hours": HOUR_MS, "minutes": 60_000}


def key(name: str, type: ConfigType, default: Value, doc: str, **more: object) -> ConfigKey:
    """Return a key: name, type, default and documentation, then bounds and other `ConfigKey` fields by
    name."""
    return ConfigKey(name, type, default, doc, **more)  # type: ignore[arg-type]


def synonyms_of(*names: str) -> tuple[Synonym, ...]:
    """Return the broker keys that give a topic key its default, strongest first, with their time units."""
    return tuple(Synonym(name, _FACTORS.get(name.rpartition(".")[2], 1)) for name in names)
