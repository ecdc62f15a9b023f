"""What the rows of the key tables are made of. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import ConfigKey, ConfigType, Synonym, Value

BOOLEAN, INT, LONG, DOUBLE, STRING, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.STRING,
    ConfigType.LIST,
)
MIB: Final = 1 << 20
HOUR_MS: Final = 3_600_000
WEEK_MS: Final = 168 * HOUR_MS
_FACTORS: Final = {"hours": HOUR_MS, "minutes": 60_000}


def key(name: str, type: ConfigType, default: Value, doc: str, **more: object) -> ConfigKey:
    """A row: name, type, default and words, then bounds and the rest of `ConfigKey` by name."""
    return ConfigKey(name, type, default, doc, **more)  # type: ignore[arg-type]


def synonyms_of(*names: str) -> tuple[Synonym, ...]:
    """The broker keys that give a topic key its default, strongest first; hours and minutes count as such."""
    return tuple(Synonym(name, _FACTORS.get(name.rpartition(".")[2], 1)) for name in names)
