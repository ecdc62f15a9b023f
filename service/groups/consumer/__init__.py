"""KIP-848 groups: state, heartbeat pipeline, target assignment and reconciliation."""
