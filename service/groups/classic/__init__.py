"""Classic groups: rebalances of JoinGroup and SyncGroup in which a member assigns.

KIP-62, 345, 394, 559, 800 and 814.
"""
