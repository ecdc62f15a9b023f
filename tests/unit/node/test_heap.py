"""Heap of a node: threads use what others have freed, and the system gets none of it back at once."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library has no arenas"
)
_HEAD = """
import ctypes, resource, sys, threading
from service.node.heap import set_up_heap
if sys.argv[1] == "set-up":
    set_up_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
"""
_ARENAS = """
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
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""
_FAULTS = """
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def chunk():
    piece = libc.malloc(4 << 20)
    ctypes.memset(piece, 1, 4 << 20)
    libc.free(piece)

for number in range(9):
    if number == 1:
        before = faults()
    thread = threading.Thread(target=chunk)
    thread.start()
    thread.join()
print(faults() - before)
"""
_BURST = """
import os
from concurrent.futures import Executor
from functools import partial
from service.node.heap import heap_usage
from service.node.memory_trim import MemoryTrimmer
from service.node.process import _resident_bytes, _trimmer

class AtOnce(Executor):
    def submit(self, work):
        work()

resident = partial(_resident_bytes, os.open("/proc/self/statm", os.O_RDONLY))
memory = MemoryTrimmer(resident, _trimmer(), AtOnce(), lambda: 0, lambda: 0, heap_usage())
memory.check()
before = resident()
for _ in range(2):
    pieces = [libc.malloc(1 << 20) for _ in range(60)]
    for piece in pieces: ctypes.memset(piece, 1, 1 << 20)
    for _ in range(6): memory.check()
    for piece in pieces: libc.free(piece)
    for _ in range(6): memory.check()
print((resident() - before) >> 20)
"""


def _run(script: str, mode: str, *arguments: str) -> str:
    command = [sys.executable, "-c", _HEAD + script, mode, *arguments]
    return subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize(("mode", "is_one"), [("set-up", True), ("plain", False)])
def test_all_threads_share_one_arena(tmp_path: Path, mode: str, is_one: bool) -> None:
    found = tmp_path / "arenas"
    _run(_ARENAS, mode, str(found))
    assert (len(re.findall("<heap nr=", found.read_text())) == 1) is is_one


def test_a_node_that_is_idle_again_has_what_it_had() -> None:
    assert int(_run(_BURST, "set-up")) < 16, "60 MB were in use for a while"


def test_a_chunk_takes_the_pages_of_the_one_before() -> None:
    assert int(_run(_FAULTS, "set-up")) < 100, "a chunk has 1,024 pages"
