"""The composition root: builds one node from the rooms below, and ends it.

`node` starts and stops the parts in order, `node_parts` has them with their figures; `process` is the process
around them, `event_loop` its loop.
`standalone_control_plane` and `quorum_control_plane` say where the cluster's metadata comes from. Only this
room knows all the others.
"""
