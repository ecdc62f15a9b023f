"""Loggers of this process and their levels, as BROKER_LOGGER resources describe and alter them (KIP-412).

Levels are lost when the process ends. They have Kafka's names; FATAL is Python's CRITICAL, and TRACE logs no
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
    """Return each logger's name and effective level, sorted by name."""
    known = {name: _find(name) for name in list(logging.root.manager.loggerDict)}
    found = [(name, one) for name, one in known.items() if one is not None and name != ROOT]
    return [(name, _name_of(one.getEffectiveLevel())) for name, one in sorted([(ROOT, logging.root), *found])]


def alter(resource: AlterResource, node_id: int, *, validate_only: bool) -> None:
    """Change all levels of the resource or none (Kafka ``RuntimeLoggerManager``).

    Raises `RequestError`: INVALID_CONFIG for an unknown logger or level, INVALID_REQUEST for another node's
    id and for an operation that loggers do not have.
    """
    check_changes(resource.configs)
    broker_id = broker_id_of(resource.resource_name)
    if broker_id != node_id:
        raise _invalid(f"Unexpected node id. Expected {node_id}, but received {broker_id}")
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
        _log.info("log level of %s set to %s", printable(name), value if is_set else "its parent's")


def _find(name: str) -> logging.Logger | None:
    """Return an existing logger or None: `logging.getLogger` would create it.

    The parent of loggers exists, too, although nothing logs by it: a level of `service.tiering` is one of all
    that is below.
    """
    if name == ROOT:
        return logging.root
    found = logging.root.manager.loggerDict.get(name)
    if isinstance(found, logging.PlaceHolder):
        found = logging.getLogger(name)
    return found


def _name_of(level: int) -> str:
    """Return Kafka's name of the lowest level that `level` still logs.

    >>> _name_of(30), _name_of(29), _name_of(99)
    ('WARN', 'WARN', 'FATAL')
    """
    return next((name for name, least in LEVELS.items() if level <= least), "FATAL")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
