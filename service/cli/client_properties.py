"""`--command-config FILE`: how a command connects to brokers, in Java's or librdkafka's names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.client.security import Security

_BOOTSTRAP = "bootstrap.servers"


def add_command_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="properties with security.protocol, sasl.… and ssl.…, in Java's names or librdkafka's",
    )


def security_of_args(args: argparse.Namespace) -> Security:
    """Return the security that the file of `--command-config` says, PLAINTEXT without one.

    Raises `ConfigError` with the file's name.
    """
    from service.client.security import PLAINTEXT

    if args.command_config is None:
        return PLAINTEXT
    return read_security_file(args.command_config)


def read_security_file(path: str) -> Security:
    """Return the security that a file of client properties says. Raises `ConfigError` with its name."""
    import secrets

    from service.base.errors import ConfigError
    from service.base.properties_file import load_properties
    from service.client.security import security_of
    from service.config.client import parse_client

    given = load_properties(path)
    given.pop(_BOOTSTRAP, None)  # files are shared with clients; the address is the command's own option
    try:
        return security_of(parse_client(given), secrets.token_urlsafe)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
