"""The deployment of a plan, as Ray Serve takes it.

Whoever needs other values, such as more CPUs for a replica or a slower update, sets them in the configuration
of Serve, where they take precedence over these.
"""

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from antiphon.ray import scaling
from antiphon.ray.options import Plan
from antiphon.ray.replica import Replica

NAME = "antiphon"
MAX_ONGOING = 10_000
"""Requests of a replica, running and waiting: the server has limits of its own. Ray's default is 5."""
HEALTH_SECONDS = 2
"""Seconds between two checks, which also find out that a replica has died. Ray's default is 10."""
STARTS = 3
"""How often a replica is started before the deployment has failed. Ray's default is 20."""


def application(plan: Plan) -> Any:
    """The application of a plan."""
    deployment = serve.deployment(Replica, **arguments(plan))
    return deployment.bind(plan.tokens)


def arguments(plan: Plan) -> dict[str, Any]:
    """The arguments of `serve.deployment`."""
    return {
        "name": NAME,
        "max_ongoing_requests": MAX_ONGOING,
        "health_check_period_s": HEALTH_SECONDS,
        "max_constructor_retry_count": STARTS,
        "graceful_shutdown_timeout_s": plan.settings.drain_seconds,
        "logging_config": LoggingConfig(enable_access_log=False),  # each request has a line of the server
        **_number(plan),
        **_resources(plan),
    }


def _number(plan: Plan) -> dict[str, Any]:
    """How many replicas there are."""
    if plan.least == plan.most:
        return {"num_replicas": plan.least}
    policy = AutoscalingPolicy(policy_function=f"{scaling.__name__}:{scaling.by_load.__name__}")
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=plan.least, max_replicas=plan.most, policy=policy
        )
    }


def _resources(plan: Plan) -> dict[str, Any]:
    """What a replica needs. vLLM's workers have a bundle each if Ray runs them: on one machine or several."""
    environment = {"runtime_env": {"env_vars": dict(plan.variables)}} if plan.variables else {}
    if not plan.spread:
        return {"ray_actor_options": {"num_gpus": plan.gpus, **environment}}
    bundles = [{"GPU": 1.0} for _ in range(int(plan.gpus))]
    bundles[0]["CPU"] = 1.0  # for the replica itself, which leaves the GPU to a worker
    return {
        "ray_actor_options": {"num_cpus": 1, **environment},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
    }
