"""Antiphon on Ray Serve: `serve run antiphon.ray:app model=Qwen/Qwen3-8B replicas=2 store=postgresql://…`.

Every replica is a whole server: the application of `http/app.py`, with its models or before models at URLs,
behind Ray's proxy. `options.py` reads the keys, which are the options of `antiphon serve` and a few of Ray;
`deployment.py` describes the deployment to Ray; `replica.py` starts and ends a server in a replica;
`scaling.py` says how many are needed. Several replicas are one server to clients: they share a database, and
ask each other what concerns all (`siblings.py`).

Ray is an extra: only what runs under it imports it.
"""

from typing import Any

from antiphon.core.errors import needing_extra


def app(args: dict[str, Any]) -> Any:
    """The application, for `serve run antiphon.ray:app KEY=VALUE …` and for the configuration of Serve.

    Raises AntiphonError for a key or a value that is wrong, before anything is deployed.
    """
    from antiphon.ray.options import read  # noqa: PLC0415 - with all options of the server

    plan = read(args)
    with needing_extra("antiphon.ray", "ray"):
        from antiphon.ray.deployment import application  # noqa: PLC0415
    return application(plan)
