"""Log compaction: of each key only the last record stays (Kafka `LogCleaner`, `Cleaner`).

What to do is decided on the loop (`plan`), looking and copying is done on `log-cleaner` threads, megabytes at
a time (`copying`), and what was copied takes the place of what it was copied from so that any crash leaves
the one or the other (`swap`). Knows nothing of topics and leaders, nor of settings other than a log's own.
"""
