"""Simulation of hundreds of replicas that several servers share, without HTTP: from one seed, in seconds.

Real are the pool with its knowledge of caches, the slots of engines, generations and their failover, the
accounts of keys, and the leases of their limits on the SQL of the store. Replaced are the replicas
(`machine.py`), their events on the way (`bus.py`), and the clients. Begin reading with `world.py`.

To add a trouble: `World._trouble`. A law: `laws.py`, and a fault that it finds in `faults.py`. A workload:
`WORKLOADS` of `workloads.py`; its figures, and their bounds, are in `measure.py`.
"""
