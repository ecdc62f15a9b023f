"""Profiles: files of client properties with a name, of which one may be in use, in the user's own folder."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX: Final = ".properties"
_IN_USE: Final = "in-use"


def checked_name(text: str) -> str:
    """Return a profile's name; `ConfigError` for one that is no name of a file here."""
    if not _NAME.fullmatch(text):
        raise ConfigError(f"{text!r} is no name of a profile: letters, digits, '.', '_' and '-', at most 64")
    return text


class Profiles:
    """The folder of profiles: ``$XDG_CONFIG_HOME/firn``, by default ``~/.config/firn``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = Path(_config_folder(environ)) / "firn"
        self._named = environ.get("FIRN_PROFILE") or None

    def path(self, name: str) -> Path:
        """Return the file of a profile, be it there or not. Raises `ConfigError` for what is no name."""
        return self.folder / (checked_name(name) + _SUFFIX)

    def names(self) -> list[str]:
        """Return the names of all profiles."""
        found = (path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(name for name in found if _NAME.fullmatch(name))  # other files are an editor's

    def in_use(self) -> str | None:
        """Return the name of the profile in use: FIRN_PROFILE's, or the one that was chosen, or None.

        Raises `ConfigError` where nobody can read which was chosen: a command would ask another cluster.
        """
        if self._named is not None:
            return self._named
        path = self.folder / _IN_USE
        try:
            return path.read_text("utf-8").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: {e}") from e

    def path_in_use(self) -> Path | None:
        """Return the file of the profile in use. Raises `ConfigError` where there is none of that name."""
        name = self.in_use()
        if name is None:
            return None
        path = self.path(name)
        if not path.is_file():
            raise ConfigError(
                f"there is no profile {name} ({path}): 'firn profile list' names those there are"
            )
        return path

    def use(self, name: str | None) -> None:
        """Put a profile into use, or none. Raises `ConfigError` where there is none of that name."""
        if name is None:
            (self.folder / _IN_USE).unlink(missing_ok=True)
            return
        if not self.path(name).is_file():
            raise ConfigError(f"there is no profile {name}: 'firn profile list' names those there are")
        self._write(self.folder / _IN_USE, name + "\n")

    def add(self, name: str, properties: Mapping[str, str]) -> Path:
        """Write a profile, for the user's own eyes. Raises `ConfigError` where there is one of that name."""
        path = self.path(name)
        if path.exists():
            raise ConfigError(f"there is a profile {name} already: {path}")
        self._write(path, "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items()))
        return path

    def remove(self, name: str) -> None:
        """Delete a profile. Raises `ConfigError` where there is none of that name."""
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            raise ConfigError(f"there is no profile {name}") from None
        if self._named is None and self.in_use() == name:
            self.use(None)

    def _write(self, path: Path, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def _config_folder(environ: Mapping[str, str]) -> str:
    """Return the user's folder of settings, never one below the working directory, which may be anybody's."""
    given, home = environ.get("XDG_CONFIG_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(given):
        return given
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a container's user without an entry
            home = "/"
    return os.path.join(home, ".config")


def _escaped(value: str) -> str:
    """Return a value so that a properties file has it, blanks at its beginning included."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    text = text.replace("\t", "\\t").replace("\f", "\\f")
    return f"\\{text}" if text.startswith(" ") else text
