"""What is known of an agent without starting it."""

from __future__ import annotations

import functools
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.models.trial.config import AgentConfig


def check(agent: AgentConfig) -> None:
    """Check the agent's name or import path.

    Raises:
        ValueError: there is no such agent.
        ImportError: the import path does not lead to one here.
    """
    AgentFactory.get_agent_class_from_config(agent)


def keys(agent: AgentConfig) -> list[str]:
    """Names of the variables in which Harbor looks for the agent's key of its model; empty where it needs none.

    Only told: whatever goes wrong here is told by who runs the trial.
    """
    # What its environment refers to is not set here.
    plain = agent.model_copy(update={"env": {}})
    try:
        from harbor.agents.agent_auth_resolution import resolve_agent_model_connection

        return list(resolve_agent_model_connection(plain).api_key_candidate_names)
    except Exception:
        return []


def info(agent: AgentConfig) -> dict[str, Any]:
    """`_info`, once for each agent."""
    return _info(agent.name, agent.import_path, agent.model_name, agent.skip_model_parsing)


@functools.cache
def _info(name: str | None, import_path: str | None, model_name: str | None, skip_parsing: bool) -> dict[str, Any]:
    """Harbor's ``agent_info`` for trials whose agent never came up; groups them with those that did."""
    model = None
    if model_name:
        # Here and not above: it loads litellm, which takes seconds.
        from harbor.agents.agent_auth_resolution import parse_model_name

        provider, model_id = parse_model_name(model_name, skip_model_parsing=skip_parsing)
        model = {"name": model_id, "provider": provider}
    return {
        "name": AgentFactory.get_agent_class_from_config(AgentConfig(name=name, import_path=import_path)).name(),
        "version": "unknown",
        "model_info": model,
    }
