"""What one thread of a node frees, another one uses."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import ctypes, sys, threading
from service.node.heap import have_one_arena
if sys.argv[2] == "one":
    have_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
together = threading.Barrier(4)

def take():
    together.wait()
    libc.malloc(100_000)
    together.wait()

threads = [threading.Thread(target=take) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library has no arenas")
@pytest.mark.parametrize(("mode", "is_one"), [("one", True), ("plain", False)])
def test_all_threads_share_one_arena(tmp_path: Path, mode: str, is_one: bool) -> None:
    found = tmp_path / "arenas"
    subprocess.run([sys.executable, "-c", _SCRIPT, str(found), mode], check=True, timeout=60)
    assert (len(re.findall("<heap nr=", found.read_text())) == 1) is is_one
