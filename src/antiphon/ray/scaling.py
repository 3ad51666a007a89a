"""How many replicas are needed, by the load of their own engines.

Each replica reports its load every ten seconds; Ray calls `by_load` with the means of half a minute, and
bounds, delays and smooths what it says. Ray pickles this module by value into its controller, which need not
have Antiphon: it imports nothing of it.
"""

from typing import Any

LOAD = "antiphon_load"
"""The name of a replica's load in Ray: requests that run or wait, divided by the slots of the engine."""


def by_load(context: Any) -> tuple[float, dict[str, Any]]:
    """The number of replicas whose slots would hold all requests of now, and the state of the policy.

    `context` is Ray's AutoscalingContext. A replica that has reported nothing yet is idle.
    """
    loads = (context.aggregated_metrics or {}).get(LOAD)
    if not loads:
        return context.target_num_replicas, {}
    return max(1.0, sum(loads.values())), {}
