"""Cluster that a command asks, if its options do not say: the environment's, a file's, a profile's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from service.cli.client_properties import add_command_config_option

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULTS = (
    "default: bootstrap.servers of --command-config; FIRN_BOOTSTRAP; bootstrap.servers of FIRN_COMMAND_CONFIG"
    f" or of the profile in use; {DEFAULT_BOOTSTRAP}"
)
_ADDRESSES = {"bootstrap_server": "--bootstrap-server", "bootstrap": "--bootstrap"}
_BOOTSTRAP = "bootstrap.servers"
_CREDENTIALS = ("sasl.", "ssl.key", "ssl.certificate", "firn.http.token")
"""How the names of properties begin that are, or lead to, what must not reach a stranger."""


def add_bootstrap_option(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which brokers are asked, and how to log in there."""
    _add_brokers(parser)
    add_command_config_option(parser)


def add_bootstrap_options(parser: argparse.ArgumentParser, controller_help: str) -> None:
    """Add the options that say which brokers, or which controllers, are asked, and how to log in there."""
    group = parser.add_mutually_exclusive_group()
    _add_brokers(group)
    group.add_argument("--bootstrap-controller", metavar="HOST:PORT,…", help=controller_help)
    add_command_config_option(parser)


def _add_brokers(to: argparse._ActionsContainer) -> None:
    to.add_argument("--bootstrap-server", metavar="HOST:PORT,…", help=f"brokers of the cluster ({DEFAULTS})")


def fill_in(args: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Set what the options `--bootstrap-server` and `--command-config` left out.

    Properties are the file of FIRN_COMMAND_CONFIG or else the profile in use. The address is that of a file
    which an option names, else FIRN_BOOTSTRAP's, else that of the other properties: what is said with the
    command counts before what the environment says. Raises `ConfigError` for a file that cannot be read, a
    profile that is not there, and an address that is not the profile's but would get its credentials.
    """
    if not hasattr(args, "command_config"):
        return
    own_file: str | None = args.command_config
    profile: str | None = None
    if own_file is None:
        profile = None if environ.get("FIRN_COMMAND_CONFIG") else _profile(environ)
        args.command_config = environ.get("FIRN_COMMAND_CONFIG") or profile
    if profile is not None:
        _keep_credentials(args, environ, profile)
    for name in _ADDRESSES:
        if getattr(args, name, "") is None:
            address = _told(own_file) or environ.get("FIRN_BOOTSTRAP") or _told(args.command_config)
            setattr(args, name, address or DEFAULT_BOOTSTRAP)


def _profile(environ: Mapping[str, str]) -> str | None:
    from service.cli.profiles import Profiles

    path = Profiles(environ).path_in_use()
    return None if path is None else str(path)


def _keep_credentials(args: argparse.Namespace, environ: Mapping[str, str], profile: str) -> None:
    """Raise `ConfigError` where the profile's credentials would go to brokers that are not its own, or to
    controllers or HTTP listeners on other hosts."""
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.properties_file import load_properties

    properties = load_properties(profile)
    servers = _words(properties.get(_BOOTSTRAP))
    if not servers or not any(key.startswith(_CREDENTIALS) for key in properties):
        return
    for source, address in _strangers(args, environ, servers):
        raise ConfigError(
            f"{source} {address}: the profile in use, {Path(profile).stem}, has credentials for"
            f" {','.join(servers)}, which must not go elsewhere; name the properties for it with"
            " --command-config FILE, or choose another profile, or none: firn profile use [NAME]"
        )


def _strangers(
    args: argparse.Namespace, environ: Mapping[str, str], servers: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield options with addresses that do not belong to these brokers."""
    from urllib.parse import urlsplit

    from service.base.addresses import is_loopback

    hosts = {_host(one) for one in servers}
    controllers = _words(getattr(args, "bootstrap_controller", None))
    yield from (("--bootstrap-controller", one) for one in controllers if _host(one) not in hosts)
    for name, option in _ADDRESSES.items():
        if hasattr(args, name) and not controllers:
            told: str | None = getattr(args, name)
            source = option if told is not None else "FIRN_BOOTSTRAP"
            named = _words(told if told is not None else environ.get("FIRN_BOOTSTRAP"))
            yield from ((source, one) for one in named if one not in servers)
    listeners = [("--metrics", url) for _, url in getattr(args, "metrics", None) or ()]
    listeners += [("--url", str(getattr(args, "url", None) or ""))]
    for option, url in listeners:
        host = urlsplit(url).hostname or "" if url.startswith(("http://", "https://")) else ""
        if host and host not in hosts and not is_loopback(host):
            yield option, url


def _words(addresses: str | None) -> list[str]:
    """Return the addresses of a comma list, in small letters."""
    return [one.strip().lower() for one in (addresses or "").split(",") if one.strip()]


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _told(path: str | None) -> str | None:
    if path is None:
        return None
    from service.base.properties_file import load_properties

    return load_properties(path).get(_BOOTSTRAP)
