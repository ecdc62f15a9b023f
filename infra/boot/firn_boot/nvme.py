"""Identity data of an NVMe controller: the device name with which an EBS volume was attached."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct


def identify(device: str) -> bytes:
    """Return the 4,096 bytes of an NVMe controller's identity (admin command 6, CNS 1). Raises OSError."""
    answer = ctypes.create_string_buffer(4096)
    # struct nvme_admin_cmd of linux/nvme_ioctl.h, 72 bytes: opcode … addr, lengths, cdw10 … result
    command = struct.pack(
        "<BBHIIIQQII6III", 6, 0, 0, 0, 0, 0, 0, ctypes.addressof(answer), 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0
    )
    file = os.open(device, os.O_RDONLY)
    try:
        fcntl.ioctl(file, 0xC0484E41, command)
    finally:
        os.close(file)
    return answer.raw


def ebs_name(said: bytes) -> str | None:
    """The name that an EBS volume was attached by, as sdf: bytes 3,072 to 3,104 of what is said."""
    if not said[24:64].startswith(b"Amazon Elastic Block Store"):
        return None
    name = said[3072:3104].split(b"\0")[0].decode("ascii", "replace").strip()
    return name.removeprefix("/dev/") or None
