"""Cluster that a command asks, if its options do not say: the environment's, a file's, a profile's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from service.cli.client_properties import add_command_config_option

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULTS = (
    "default: bootstrap.servers of --command-config; FIRN_BOOTSTRAP; bootstrap.servers of FIRN_COMMAND_CONFIG"
    f" or of the profile in use; {DEFAULT_BOOTSTRAP}"
)
_ADDRESSES = ("bootstrap_server", "bootstrap")
_BOOTSTRAP = "bootstrap.servers"


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
    command counts before what the environment says. Raises `ConfigError` for a file that cannot be read, and
    for a profile that is not there.
    """
    if not hasattr(args, "command_config"):
        return
    own_file: str | None = args.command_config
    if own_file is None:
        args.command_config = environ.get("FIRN_COMMAND_CONFIG") or _profile(environ)
    for name in _ADDRESSES:
        if getattr(args, name, "") is None:
            address = _told(own_file) or environ.get("FIRN_BOOTSTRAP") or _told(args.command_config)
            setattr(args, name, address or DEFAULT_BOOTSTRAP)


def _profile(environ: Mapping[str, str]) -> str | None:
    from service.cli.profiles import Profiles

    path = Profiles(environ).path_in_use()
    return None if path is None else str(path)


def _told(path: str | None) -> str | None:
    if path is None:
        return None
    from service.base.properties_file import load_properties

    return load_properties(path).get(_BOOTSTRAP)
