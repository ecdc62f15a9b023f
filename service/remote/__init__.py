"""Object storage: the bucket's layout and formats, the store behind them, and the readers of cold data.

Owns every byte that lies in the bucket (docs/bucket-format.md) and the threads that read it. Knows nothing of
brokers, leaders, Raft or the local log: who writes which segment when is `service.tiering`'s business.
"""
