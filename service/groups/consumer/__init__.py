"""Groups of KIP-848's protocol: their state, the heartbeat's pipeline, target and reconciliation."""
