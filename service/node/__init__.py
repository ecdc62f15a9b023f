"""The composition root: wires the rooms below into one node and answers requests.

`node` builds and ends everything, `dispatch` finds the handler of a request, `applier` makes this node what
the committed image says, `handlers/` holds one file per API. Only this room knows all the others.
"""
