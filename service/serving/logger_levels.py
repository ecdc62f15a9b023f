"""The loggers of this process and their levels, as BROKER_LOGGER resources tell and change them (KIP-412).

Levels hold until the process ends. They have Kafka's names; FATAL is Python's CRITICAL, and TRACE tells no
more than DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.printable import printable
from service.metadata.controller.configs_control import broker_id_of, check_changes
from service.metadata.controller.requests import AlterConfig, AlterResource, ConfigOperation

_log = logging.getLogger(__name__)

ROOT: Final = "root"
LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def levels() -> list[tuple[str, str]]:
    """Each logger with the level that counts for it, by name."""
    known = {name: _find(name) for name in list(logging.root.manager.loggerDict)}
    found = [(name, one) for name, one in known.items() if one is not None and name != ROOT]
    return [(name, _name_of(one.getEffectiveLevel())) for name, one in sorted([(ROOT, logging.root), *found])]


def alter(resource: AlterResource, node_id: int, *, validate_only: bool) -> None:
    """Change levels, all that are named or none (Kafka ``RuntimeLoggerManager``).

    Raises `RequestError`: INVALID_CONFIG for a logger or a level that is not there, INVALID_REQUEST for
    another node, and for an operation that loggers do not have.
    """
    check_changes(resource.configs)
    asked = broker_id_of(resource.resource_name)
    if asked != node_id:
        raise _invalid(f"Unexpected node id. Expected {node_id}, but received {asked}")
    _check(resource.configs)
    if not validate_only:
        _apply(resource.configs)


def _check(changes: Sequence[AlterConfig]) -> None:
    for name, operation, value in changes:
        if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            what = ConfigOperation(operation).name
            raise _invalid(f"{what} operation is not allowed for the BROKER_LOGGER resource")
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            raise _invalid(
                f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"
            )
        if _find(name) is None:
            raise RequestError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
        if operation == ConfigOperation.DELETE:
            if name == ROOT:
                raise _invalid(f"Removing the log level of the {ROOT} logger is not allowed")
        elif value not in LEVELS:
            raise RequestError(
                ErrorCode.invalid_config,
                f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(LEVELS))}",
            )


def _apply(changes: Sequence[AlterConfig]) -> None:
    for name, operation, value in changes:
        logger = _find(name)
        assert logger is not None
        is_set = operation == ConfigOperation.SET and value is not None
        logger.setLevel(LEVELS[value] if is_set and value is not None else logging.NOTSET)
        _log.warning("the log level of %s is now %s", printable(name), value if is_set else "that above it")


def _find(name: str) -> logging.Logger | None:
    """One that is there: asking Python for it would make it."""
    if name == ROOT:
        return logging.root
    found = logging.root.manager.loggerDict.get(name)
    return found if isinstance(found, logging.Logger) else None


def _name_of(level: int) -> str:
    """The most that is told at `level`.

    >>> _name_of(30), _name_of(29), _name_of(99)
    ('WARN', 'WARN', 'FATAL')
    """
    return next((name for name, least in LEVELS.items() if level <= least), "FATAL")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
