"""Builds the image with buildah in a storage of its own, on a base that is named or made by debootstrap."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from .tools import Failed, need, run, say

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / ".cache" / "image"
SUITE: Final = "trixie"
BASE: Final = f"localhost/debian:{SUITE}-slim"
IMAGE: Final = "localhost/firn:latest"
_OF_REGISTRIES: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
"""How a machine reaches its index, which pip in the build has to know; all else of it is the Dockerfile's."""


def buildah(*words: str, seconds: float = 3000) -> str:
    """Run buildah on our own storage; return what it prints."""
    HOME.mkdir(parents=True, exist_ok=True)
    storage = ("--root", str(HOME / "root"), "--runroot", str(HOME / "run"), "--storage-driver", "vfs")
    return run("buildah", *storage, *words, seconds=seconds)


def build(base: str | None) -> None:
    """Build `IMAGE`, as `docker build` would."""
    for tool in ("buildah", "ip", "unshare"):
        need(shutil.which(tool), f"{tool} is not installed")
    if base is None:
        base = BASE
        if not has_image(base):
            make_base()
    commit = run(
        "git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"
    ).strip()
    say(f"building {IMAGE} on {base}, commit {commit}")
    buildah(
        "build", "--isolation", "chroot", "--network", "host", "--format", "docker", "--layers=false",
        *ways(),
        "--build-arg", f"BASE={base}", "--build-arg", f"COMMIT={commit}", "-t", IMAGE, str(ROOT),
    )  # fmt: skip


def ways() -> list[str]:
    """Return the options by which the build reaches the index of this machine: files that no layer keeps."""
    told = [
        f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {os.environ[name]}"
        for name in _OF_REGISTRIES
        if name in os.environ
    ]
    volumes = []
    if authority := os.environ.get("PIP_CERT"):
        told.append("cert = /etc/try-image.crt")
        volumes.append(f"--volume={authority}:/etc/try-image.crt:ro")
    (HOME / "pip.conf").write_text("\n".join(["[global]", *told, ""]), "utf-8")
    return [*volumes, f"--volume={HOME / 'pip.conf'}:/etc/pip.conf:ro"]


def has_image(name: str) -> bool:
    return name in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def make_base() -> None:
    """Make what `debian:trixie-slim` is: Debian's minimal system without documentation and translations."""
    need(shutil.which("debootstrap"), "debootstrap is not installed, and no --base is named")
    need(os.geteuid() == 0, "only root can make a base")
    tree = HOME / "base"
    shutil.rmtree(tree, ignore_errors=True)
    say(f"making {BASE} by debootstrap")
    run("debootstrap", "--variant=minbase", SUITE, str(tree), seconds=1800)
    for folder in (
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/share/info",
        "var/cache/apt",
        "var/lib/apt/lists",
    ):
        shutil.rmtree(tree / folder, ignore_errors=True)
    (tree / "etc/dpkg/dpkg.cfg.d").mkdir(exist_ok=True)
    kept = "".join(f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "man", "locale", "info"))
    (tree / "etc/dpkg/dpkg.cfg.d/docker").write_text(kept + "path-include /usr/share/doc/*/copyright\n")
    (tree / "etc/apt/apt.conf.d/docker").write_text(
        'Acquire::Languages "none";\nAPT::Install-Recommends "false";\n'
    )
    container = buildah("from", "scratch").split()[-1]
    buildah("copy", container, f"{tree}/", "/")
    buildah("config", "--cmd", "bash", container)
    buildah("commit", "--rm", container, BASE)
    shutil.rmtree(tree)


def configuration() -> dict[str, Any]:
    """Return the image's configuration, as a container's runtime reads it."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", IMAGE))
    told: dict[str, Any] = found["Docker"]["config"]
    return told


def unpacked() -> tuple[str, Path]:
    """Return a container of the image and its root folder."""
    container = buildah("from", "--pull-never", IMAGE).split()[-1]
    return container, Path(buildah("mount", container).strip().splitlines()[-1])


def size_of(tree: Path) -> int:
    """Return the bytes that the files of a root folder take."""
    return int(run("du", "-sxB1", str(tree)).split()[0])


def compressed_size(tree: Path) -> int:
    """Return the bytes of one gzipped layer of everything, which is what a registry would send."""
    tar = subprocess.Popen(["tar", "-C", str(tree), "-c", "."], stdout=subprocess.PIPE)
    packed = subprocess.run(["gzip", "-6"], stdin=tar.stdout, stdout=subprocess.PIPE, check=True).stdout
    if tar.wait():
        raise Failed("tar of the root folder failed")
    return len(packed)
