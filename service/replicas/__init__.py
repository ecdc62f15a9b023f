"""Replicas of this node: opened, led, followed and closed as the committed metadata says.

`metadata_applier` applies each new image: `replica_opener` opens partitions and gives them their role,
`settings_applier` has the settings. `replica_manager` fetches from leaders, `alter_partition_manager`
proposes in-sync replicas.
"""
