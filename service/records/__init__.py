"""Record batches of format v2 (magic 2): reading, checking and building them.

Handles the bytes of a batch and nothing around them: no files, no sockets, no assignment of offsets. The room
is pure, except for the codecs' libraries. `batch` is the header view that every other room uses. `kernel` has
the per-record loops (compiled if there is a C compiler, else interpreted). `scan` walks and verifies whole
batches, `validation` decides what a broker accepts from a producer, `decode` and `builder` convert batches to
records and back.

Imported from a zip, as in Spark's executors, the package first installs its compiled kernels
(`zipped_kernels`), which alone touches files.

Must not know: topics, partitions, segments, requests.
"""

from typing import Any as _Any

_loader: _Any = None if __spec__ is None else __spec__.loader
if hasattr(_loader, "archive"):  # a zip: the interpreter cannot load shared objects from it
    import os as _os

    from service.records.zipped_kernels import install as _install

    _install(_loader, _os.path.dirname(__file__), _os.environ)
