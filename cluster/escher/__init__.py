"""ESCHER (SoCC '22): every constraint on where or when becomes a demand for a made-up countable resource.

    names, amounts     how resources are called; vectors of them
    wishes             what is wished of the nodes (pure), and where it lies
    registry           owners with leases, wishes, what is in force: a value; what must be set to make one the other (pure)
    policies/          state machines: (state, view of the cluster, now) -> (state, commands) (pure)
    library            the shell: an engine, a registry, running policies
    starts             who of two tasks with the same purpose started first
    uses               the product's own constraints: cameras near their network, standby elsewhere, gangs, customers' shares

Docs: docs/fleet/escher.md; why gangs work as they do: docs/decisions/0062-escher.md.
"""
