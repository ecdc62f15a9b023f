"""`--command-config FILE`: how a command connects to brokers, in Java's or librdkafka's names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.client.node_http import NodeHttp
    from service.client.security import Security
    from service.config.client import ClientOptions

_BOOTSTRAP = "bootstrap.servers"
_HTTP_TOKEN, _HTTP_CA = "firn.http.token.file", "firn.http.ssl.ca.location"
_NOT_KAFKAS = (_BOOTSTRAP, _HTTP_TOKEN, _HTTP_CA)
"""Other keys of a file: files are shared with clients, whose address is a command's own option."""


def add_command_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="properties with security.protocol, sasl.… and ssl.…, in Java's names or librdkafka's"
        " (default: FIRN_COMMAND_CONFIG, or the profile in use)",
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
    from service.client.security import security_of

    options = _read_options(path)
    try:
        return security_of(options, secrets.token_urlsafe)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def client_options_of_args(args: argparse.Namespace) -> ClientOptions:
    """Return the options that the file of `--command-config` says, those of PLAINTEXT without one.

    Raises `ConfigError` with the file's name.
    """
    from service.config.client import ClientOptions

    return ClientOptions() if args.command_config is None else _read_options(args.command_config)


def check_properties(path: str) -> None:
    """Raise `ConfigError` where a file of client properties would not be taken."""
    read_security_file(path)
    read_node_http(path)


def _read_options(path: str) -> ClientOptions:
    from service.base.errors import ConfigError
    from service.base.properties_file import load_properties
    from service.config.client import parse_client

    given = {name: value for name, value in load_properties(path).items() if name not in _NOT_KAFKAS}
    try:
        return parse_client(given)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def node_http_of_args(args: argparse.Namespace) -> NodeHttp:
    """Return how nodes' HTTP listeners are asked: by the token of `firn.http.token.file` in the file of
    `--command-config`, and the authorities of `firn.http.ssl.ca.location`, or else those of brokers.

    Raises `ConfigError` with the file's name.
    """
    from service.client.node_http import PLAIN_HTTP

    return PLAIN_HTTP if args.command_config is None else read_node_http(args.command_config)


def read_node_http(path: str) -> NodeHttp:
    """Return how nodes' HTTP listeners are asked, from a file of client properties. Raises `ConfigError`."""
    from service.base.errors import ConfigError
    from service.base.properties_file import load_properties
    from service.base.secret_file import read_secret_file
    from service.client.node_http import NodeHttp
    from service.client.security import tls_context

    given = load_properties(path)
    ca = given.get(_HTTP_CA) or given.get("ssl.ca.location") or given.get("ssl.truststore.location")
    checks_name = given.get("ssl.endpoint.identification.algorithm", "https").strip().lower() == "https"
    try:
        token = read_secret_file(given[_HTTP_TOKEN], 1).text if _HTTP_TOKEN in given else None
        return NodeHttp(tls_context(ca, checks_hostname=checks_name).context, token)
    except (ConfigError, OSError) as e:
        raise ConfigError(f"{path}: {_HTTP_TOKEN}, {_HTTP_CA}: {e}") from e
