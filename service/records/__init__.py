"""Record batches of format v2 (magic 2): looking at them, checking them, making them.

Owns the bytes of a batch and nothing around them: no files, no sockets, no offsets assigned. Everything here
is pure, except that codecs are libraries. `batch` is the header view that every other room uses; `kernel` has
the per-record loops (compiled where a C compiler is, interpreted elsewhere); `scan` walks and verifies whole
batches; `validation` decides what a broker accepts from a producer; `decode` and `builder` turn batches into
records and back.

Imported from a zip, as Spark's executors do, the package sees to its compiled kernels first
(`zipped_kernels`, `kernel_build`): those two alone touch files and processes.

Must not know: topics, partitions, segments, requests.
"""

from typing import Any as _Any

_loader: _Any = None if __spec__ is None else __spec__.loader
if hasattr(_loader, "archive"):  # a zip, out of which the interpreter loads no shared object
    import os as _os

    from service.records.zipped_kernels import install as _install

    _install(_loader, _os.path.dirname(__file__), _os.environ)
