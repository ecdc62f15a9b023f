"""The log's tail after the archive, read from the brokers."""
