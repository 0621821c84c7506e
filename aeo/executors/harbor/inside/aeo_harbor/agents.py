"""What is known of an agent without starting it."""

from __future__ import annotations

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


def info(agent: AgentConfig) -> dict[str, Any]:
    """Harbor's ``agent_info`` for trials whose agent never came up; groups them with those that did."""
    model = None
    if agent.model_name:
        # Here and not above: it loads litellm, which takes seconds.
        from harbor.agents.agent_auth_resolution import parse_model_name

        provider, name = parse_model_name(agent.model_name, skip_model_parsing=agent.skip_model_parsing)
        model = {"name": name, "provider": provider}
    return {
        "name": AgentFactory.get_agent_class_from_config(agent).name(),
        "version": "unknown",
        "model_info": model,
    }
