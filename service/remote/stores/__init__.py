"""Object stores: their protocol, its implementations, credentials, retries and limits."""
