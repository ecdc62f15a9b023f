"""The program that a container starts: `server` by default, else any command of `firn`.

Before a node starts, an empty volume is formatted where the environment says so (`forming`), and refused
where it does not. Then this process becomes `firn`, so signals reach the node itself.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

CONFIG: Final = Path("/etc/firn/server.properties")
DEFAULTS: Final = {
    "log.dirs": "/var/lib/firn/data",
    "listeners": "PLAINTEXT://:9092",
    "firn.http.listener": "0.0.0.0:9464",
}
"""Settings of a node in a container, where neither a file nor the environment has others."""


class Asked(NamedTuple):
    """A command line of `firn server`: its file, and the settings of `--set`."""

    config: str | None
    set: tuple[tuple[str, str], ...]


def main() -> int:
    words = sys.argv[1:]
    if words and words[0] != "server":
        become(words, os.environ)
    from service.base.errors import FirnError

    os.umask(0o027)
    try:
        words = with_file(words or ["server"], CONFIG)
        environ = with_defaults(words, os.environ)
        prepare(words, environ)
    except (FirnError, OSError) as error:
        print(f"firn-image: {error}{who(error)}", file=sys.stderr)
        return 1
    become(words, environ)
    return 1


def who(error: Exception) -> str:
    """Return words about this process for an error of rights: a folder of the host may be another user's."""
    if os.strerror(errno.EACCES) not in str(error):
        return ""
    asking = f"user {os.geteuid()} of group {os.getegid()}"
    return f" (for {asking}: docs/containers.md says whose a volume has to be)"


def become(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process by `firn` of the same environment."""
    firn = str(Path(sys.executable).with_name("firn"))
    os.execve(firn, [firn, *words], dict(environ))


def with_file(words: Sequence[str], config: Path) -> list[str]:
    """Return the words of `firn server`, with the file that is mounted where they name none.

    Whatever stands in its place is taken for it, and refused if it is none: where there is no file to mount a
    runtime makes a folder, and a node without its settings may be open to all. Raises `OSError`.
    """
    if parsed(words).config or not is_there(config):
        return list(words)
    return [words[0], str(config), *words[1:]]


def is_there(path: Path) -> bool:
    """Return whether there is anything. Raises `OSError` where that cannot be known."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def with_defaults(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, with a variable for each of `DEFAULTS` that nothing sets.

    A variable beside a setting of the file would be named in the log as overruled.
    """
    from service.base.properties_file import load_property_lines
    from service.config.environment import key_variable

    asked = parsed(words)
    lines = load_property_lines(asked.config) if asked.config else []
    given = {line.key for line in lines} | {key for key, _ in asked.set}
    if "log.dir" in given or "FIRN_LOG_DIR" in environ:
        given.add("log.dirs")
    missing = {key_variable(key): text for key, text in DEFAULTS.items() if key not in given}
    return {**missing, **environ}


def prepare(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Format the node's directories where the environment says so. Raises `ConfigError`, `StorageError`."""
    from .forming import prepare_volume

    asked = parsed(words)
    prepare_volume(asked.config, asked.set, environ)


def parsed(words: Sequence[str]) -> Asked:
    """Return what a command line of `firn server` asks for."""
    from service.cli.main import build_parser

    found = build_parser("server").parse_args(words)
    return Asked(found.config, tuple(found.set))


if __name__ == "__main__":
    sys.exit(main())
