"""The package: a tar of wheels, fetched, compared, installed into an environment of its own."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .document import Document, Package
from .errors import BootError
from .machine import Machine

PACKAGE_LIMIT_BYTES = 1 << 30


def step_package(machine: Machine, document: Document, fetch: Callable[[Package], Iterator[bytes]]) -> None:
    package = document.package
    home = machine.path(f"opt/firn/{package.sha256[:16]}")
    if not (home / ".complete").exists():
        if home.exists():
            shutil.rmtree(home)
        work = machine.path("opt/firn/.unpacked")
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        try:
            download(machine, package, work / "package.tar", fetch)
            wheels = unpack(work / "package.tar", work / "wheels")
            install(machine, wheels, home)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        machine.sync()  # after a power cut, what is marked complete is
        (home / ".complete").touch()
        machine.sync()  # and what `current` names is marked: else it would be removed under a node that runs
    current = machine.path("opt/firn/current")
    if not current.is_symlink() or os.readlink(current) != home.name:
        new = current.with_name(".current.new")
        new.unlink(missing_ok=True)
        new.symlink_to(home.name)
        new.replace(current)


def download(
    machine: Machine, package: Package, target: Path, fetch: Callable[[Package], Iterator[bytes]]
) -> None:
    """Tried again for two minutes: a machine that has just started may have neither network nor role yet."""
    for pause_s in (2, 5, 15, 30, 60, 0):
        digest, size = hashlib.sha256(), 0
        try:
            with open(target, "wb") as file:
                for piece in sent(fetch(package)):
                    size += len(piece)
                    if size > PACKAGE_LIMIT_BYTES:
                        raise BootError(f"{package.url}: larger than {PACKAGE_LIMIT_BYTES} bytes")
                    digest.update(piece)
                    file.write(piece)
        except Unsent as error:
            if not pause_s or package.url.startswith("/"):
                raise BootError(f"{package.url}: {error}") from None
            machine.say(f"{package.url}: {error}; trying again in {pause_s} s")
            machine.sleep(pause_s)
            continue
        except OSError as error:  # a full disk is no fault of whoever sends
            raise BootError(f"{target}: {error.strerror}") from None
        if digest.hexdigest() != package.sha256:
            raise BootError(
                f"{package.url}: {size} bytes with SHA-256 {digest.hexdigest()}, not {package.sha256}"
            )
        return


class Unsent(Exception):
    """Reason for which a package was not fetched."""


def sent(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except (OSError, http.client.HTTPException) as error:
        raise Unsent(str(error)) from error


def unpack(archive: Path, target: Path) -> Path:
    """Wheels of a tar, by their plain names; nothing else in it (links, paths) is written anywhere."""
    target.mkdir()
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./").rpartition("/")[2]
                if (
                    member.isfile()
                    and re.fullmatch(r"[A-Za-z0-9._+-]+\.whl", name)
                    and (file := tar.extractfile(member))
                ):
                    with open(target / name, "wb") as out:
                        shutil.copyfileobj(file, out)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BootError(f"the package is no tar of wheels: {error}") from None
    return target


def install(machine: Machine, wheels: Path, home: Path) -> None:
    pip = sorted(wheels.glob("pip-*.whl"))
    if not pip or not list(wheels.glob("firn_log-*.whl")):
        raise BootError("the package lacks a wheel of pip, or of firn-log")
    # pip comes along as a wheel: Debian's Python has none, and the machine may have no way to an index.
    machine.run(sys.executable, "-m", "venv", "--without-pip", str(home))
    python = str(home / "bin/python")
    machine.run(
        python,
        str(pip[-1] / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-cache-dir",
        "--find-links",
        str(wheels),
        "firn-log",
    )
    machine.run(str(home / "bin/firn"), "--version")
