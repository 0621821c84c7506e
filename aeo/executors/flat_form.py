"""The form of a configuration whose keys all stand at the top, for one agent: ``command`` and ``sleep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aeo.core.model import Evaluation
from aeo.executors import forms
from aeo.executors.forms import AgentRow, Field, Values, meant, put, shown

#: Marks a text for the catalogues of translations; pages translate it.
N_ = str


@dataclass(frozen=True, kw_only=True)
class FlatForm:
    """See `aeo.executors.forms.Form`; an own field has its key's name."""

    fields: tuple[Field, ...]
    #: The key that says which tasks; empty: the own fields do.
    dataset_key: str = ""
    dataset_help: str = ""
    many_agents: bool = False
    agents: tuple[str, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """See `aeo.executors.forms.Form`."""
        return frozenset({"agents", "attempts", *(("dataset",) if self.dataset_key else ())})

    def read(self, config: Mapping[str, Any]) -> Values:
        """See `aeo.executors.forms.Form`."""
        row = AgentRow(agent=shown(config.get("agent")), model=shown(config.get("model")), origin=0)
        return Values(
            dataset=shown(config.get(self.dataset_key)) if self.dataset_key else "",
            agents=(row,) if row.agent or row.model else (),
            attempts=shown(config.get("attempts")),
            own=forms.read_fields(self.fields, self._paths(), config),
        )

    def write(self, values: Values, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `aeo.executors.forms.Form`."""
        before, made = self.read(config), dict(config)
        was = before.agents[0] if before.agents else AgentRow()
        now = values.agents[0] if values.agents else AgentRow()
        for key, text, old, kind in (
            (self.dataset_key, values.dataset, before.dataset, "text"),
            ("agent", now.agent, was.agent, "text"),
            ("model", now.model, was.model, "text"),
            ("attempts", values.attempts, before.attempts, "whole"),
        ):
            if key and text.strip() != old.strip():
                made = put(made, (key,), meant(text, kind))
        return forms.write_fields(self.fields, self._paths(), values, before, made)

    def word(self, path: str) -> str:
        """See `aeo.executors.forms.Form`."""
        key = path.partition(".")[0].partition("[")[0]
        if key in ("agent", "model"):
            return "agents.0"
        if key and key == self.dataset_key:
            return "dataset"
        return key if key == "attempts" or key in self._paths() else ""

    def hidden(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """See `aeo.executors.forms.Form`."""
        return tuple(key for key in config if key != "agent_timeout_multiplier" and not self.word(key))

    def tasks(self, dataset: str) -> tuple[str, ...] | None:  # noqa: ARG002
        """See `aeo.executors.forms.Form`."""
        return None

    def chosen(self, values: Values, names: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        """See `aeo.executors.forms.Form`."""
        return tuple(names)

    def again(self, evaluation: Evaluation) -> dict[str, Any]:
        """See `aeo.executors.forms.Form`."""
        return dict(evaluation.spec.config)

    def _paths(self) -> dict[str, forms.Path]:
        return {item.name: (item.name,) for item in self.fields}
