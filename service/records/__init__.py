"""Record batches of format v2 (magic 2): looking at them, checking them, making them.

Owns the bytes of a batch and nothing around them: no files, no offsets assigned, no sockets. Everything here is
pure, except that codecs are libraries. `batch` is the header view that every other room uses; `kernel` holds the
per-record loops (compiled where a C compiler is, interpreted elsewhere); `validation` decides what a broker
accepts from a producer; `decode` and `builder` turn batches into records and back.

Must not know: topics, partitions, segments, requests.
"""
