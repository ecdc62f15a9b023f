"""Record batches of format v2 (magic 2): looking at them, checking them, making them.

Owns the bytes of a batch and nothing around them: no files, no sockets, no offsets assigned. Everything here
is pure, except that codecs are libraries. `batch` is the header view that every other room uses; `kernel` has
the per-record loops (compiled where a C compiler is, interpreted elsewhere); `scan` walks and verifies whole
batches; `validation` decides what a broker accepts from a producer; `decode` and `builder` turn batches into
records and back.

Must not know: topics, partitions, segments, requests.
"""
