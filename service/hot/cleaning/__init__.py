"""Log compaction: keeps only the last record of each key (Kafka `LogCleaner`, `Cleaner`).

The loop decides (`plan`), `log-cleaner` threads read and copy megabytes at a time (`copying`), and the copy
replaces its source so that a crash leaves one or the other whole (`swap`). Knows nothing of topics and
leaders, nor of settings other than a log's own.
"""
