"""A Harbor job configuration as a form shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from aeo.core.model import Evaluation
from aeo.executors import forms, source
from aeo.executors.forms import AgentRow, Field, Values, get, meant, put, shown

#: Marks a text for the catalogues of translations; pages translate it.
N_ = str

#: Where the own fields stand.
_PATHS: Mapping[str, forms.Path] = {
    "n_tasks": ("datasets", 0, "n_tasks"),
    "timeout_multiplier": ("timeout_multiplier",),
    "verifier_timeout_multiplier": ("verifier_timeout_multiplier",),
    "agent_setup_timeout_multiplier": ("agent_setup_timeout_multiplier",),
    "environment_build_timeout_multiplier": ("environment_build_timeout_multiplier",),
    "max_retries": ("retry", "max_retries"),
}
_INCLUDE: forms.Path = ("datasets", 0, "task_names")
_EXCLUDE: forms.Path = ("datasets", 0, "exclude_task_names")
#: Where a dataset comes from: replaced together.
_SOURCE = ("path", "name", "version", "ref", "repo", "registry", "registry_url", "registry_path")
#: Of a dataset, what the form shows.
_OF_DATASET = ("path", "name", "version", "ref", "task_names", "exclude_task_names", "n_tasks")
_OF_AGENT = ("name", "import_path", "model_name")
#: Keys with a field of their own, or set by the platform.
_SHOWN = (
    *("n_attempts", "agent_timeout_multiplier"),
    *(str(path[0]) for path in _PATHS.values() if len(path) == 1),
)


class HarborForm:
    """See `aeo.executors.forms.Form`."""

    words = frozenset(forms.WORDS)
    dataset_help = N_("org/name@ref, name@version, or an absolute path on the controller")
    many_agents = True
    agents = (
        *("oracle", "nop", "terminus-2", "claude-code", "codex", "gemini-cli", "openhands", "mini-swe-agent"),
        *("swe-agent", "aider", "goose", "opencode", "qwen-coder", "cursor-cli", "copilot-cli", "kimi-cli"),
    )
    fields = (
        Field(
            name="n_tasks",
            label=N_("At most so many tasks"),
            group="tasks",
            kind="whole",
            help=N_("Applied after the filters."),
        ),
        Field(name="timeout_multiplier", label=N_("Every time-out"), group="time", default="1.0"),
        Field(name="verifier_timeout_multiplier", label=N_("Verifier"), group="time"),
        Field(name="agent_setup_timeout_multiplier", label=N_("Agent set-up"), group="time"),
        Field(name="environment_build_timeout_multiplier", label=N_("Environment build"), group="time"),
        Field(
            name="max_retries",
            label=N_("Retries within a run"),
            group="retry",
            kind="whole",
            default="0",
            help=N_("By Harbor itself, on the same worker."),
        ),
    )

    def read(self, config: Mapping[str, Any]) -> Values:
        """See `aeo.executors.forms.Form`."""
        return Values(
            dataset=_dataset(get(config, ("datasets", 0))),
            include=_texts(get(config, _INCLUDE)),
            exclude=_texts(get(config, _EXCLUDE)),
            agents=tuple(_row(item, index) for index, item in enumerate(_agents(config))),
            attempts=shown(config.get("n_attempts")),
            own=forms.read_fields(self.fields, _PATHS, config),
        )

    def write(self, values: Values, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `aeo.executors.forms.Form`."""
        before, made = self.read(config), dict(config)
        if values.dataset.strip() != before.dataset.strip():
            made = _put_dataset(made, values.dataset.strip())
        for path, now, then in (
            (_INCLUDE, values.include, before.include),
            (_EXCLUDE, values.exclude, before.exclude),
        ):
            if now != then:
                made = put(made, path, list(now) or None)
        if values.agents != before.agents:
            made = put(made, ("agents",), [_agent(row, _agents(config)) for row in values.agents] or None)
        if values.attempts.strip() != before.attempts.strip():
            made = put(made, ("n_attempts",), meant(values.attempts, "whole"))
        return forms.write_fields(self.fields, _PATHS, values, before, made)

    def word(self, path: str) -> str:
        """See `aeo.executors.forms.Form`."""
        if path.startswith("agents["):
            return f"agents.{path[len('agents[') :].partition(']')[0]}"
        exact = {"datasets[0].task_names": "include", "datasets[0].exclude_task_names": "exclude"}
        exact |= {"n_attempts": "attempts", "job_name": "name", "agents": "agents", "datasets": "dataset"}
        exact |= {source.dotted(place): name for name, place in _PATHS.items()}
        for place, word in exact.items():
            if path == place or (place != "datasets" and path.startswith((f"{place}[", f"{place}."))):
                return word
        return "dataset" if path.startswith("datasets[0]") else ""

    def hidden(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """See `aeo.executors.forms.Form`."""
        found = [key for key in config if key not in (*_SHOWN, "datasets", "agents", "retry")]
        datasets = config.get("datasets")
        first = get(config, ("datasets", 0))
        if isinstance(first, Mapping) and (_dataset(first) or not any(first.get(key) for key in _SOURCE)):
            found += [f"datasets[0].{key}" for key in first if key not in _OF_DATASET]
            found += [f"datasets[{index}]" for index in range(1, len(config["datasets"]))]
        elif datasets:
            found.append("datasets")
        for index, agent in enumerate(_agents(config)):
            found += [f"agents[{index}].{key}" for key in agent if key not in _OF_AGENT]
        if config.get("agents") and not _agents(config):
            found.append("agents")
        retry = config.get("retry")
        if isinstance(retry, Mapping):
            found += [f"retry.{key}" for key in retry if key != "max_retries"]
        elif retry:
            found.append("retry")
        return tuple(found)

    def tasks(self, dataset: str) -> tuple[str, ...] | None:
        """See `aeo.executors.forms.Form`."""
        if not _is_path(dataset):
            return None
        try:
            folder = Path(dataset).expanduser()
            if not folder.is_absolute():
                return None
            return tuple(sorted(item.name for item in folder.iterdir() if (item / "task.toml").is_file()))
        except (OSError, ValueError, RuntimeError):
            return None

    def chosen(self, values: Values, names: Sequence[str]) -> tuple[str, ...]:
        """See `aeo.executors.forms.Form`."""
        kept = [
            name
            for name in names
            if (not values.include or any(fnmatch(name, glob) for glob in values.include))
            and not any(fnmatch(name, glob) for glob in values.exclude)
        ]
        most = meant(values.own.get("n_tasks", ""), "whole")
        return tuple(kept[:most] if isinstance(most, int) and most > 0 else kept)

    def again(self, evaluation: Evaluation) -> dict[str, Any]:
        """See `aeo.executors.forms.Form`."""
        header = evaluation.plan.header
        # The env file is none of Harbor's configuration.
        resolved = {**header["config"], "env_file": header.get("env_file")} if "config" in header else None
        made: dict[str, Any] = _settled(dict(evaluation.spec.config), resolved)
        # The name is the evaluation's own affair.
        return {key: value for key, value in made.items() if key not in ("job_name", "jobs_dir")}


def _is_path(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def _dataset(item: Any) -> str:
    """A dataset as one text; "" for one that only the whole configuration can say."""
    if not isinstance(item, Mapping) or any(item.get(key) for key in ("repo", "registry")):
        return ""
    path, name = item.get("path"), item.get("name")
    version, ref = item.get("version"), item.get("ref")
    if isinstance(path, str) and path and not (name or version or ref):
        return path if _is_path(path) else f"./{path}"
    if not isinstance(name, str) or not name or path or (version and ref):
        return ""
    return f"{name}@{shown(version or ref)}" if version or ref else name


def _put_dataset(config: dict[str, Any], text: str) -> dict[str, Any]:
    first, listed = get(config, ("datasets", 0)), config.get("datasets")
    kept = {key: value for key, value in first.items() if key not in _SOURCE} if isinstance(first, Mapping) else {}
    made = [{**_source(text), **kept}, *(listed[1:] if isinstance(listed, list) else [])]
    return {**config, "datasets": made} if made != [{}] else {k: v for k, v in config.items() if k != "datasets"}


def _source(text: str) -> dict[str, str]:
    if not text:
        return {}
    if _is_path(text):
        return {"path": text}
    name, _, version = text.rpartition("@")
    if not name or not version:
        return {"name": text}
    # As Harbor's own command line has it: a package has a ref, an entry of a registry a version.
    return {"name": name, "ref" if "/" in name else "version": version}


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(line.strip() for item in value for line in item.splitlines() if line.strip())


def _agents(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    listed = config.get("agents")
    return listed if isinstance(listed, list) and all(isinstance(item, dict) for item in listed) else ()


def _row(item: Mapping[str, Any], index: int) -> AgentRow:
    agent = item.get("name") or item.get("import_path")
    return AgentRow(agent=shown(agent or None), model=shown(item.get("model_name")), origin=index)


def _agent(row: AgentRow, listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = row.origin is not None and 0 <= row.origin < len(listed)
    own = dict(listed[row.origin]) if known and row.origin is not None else {}
    then = _row(own, 0)
    if row.agent.strip() != then.agent.strip():
        own = {key: value for key, value in own.items() if key not in ("name", "import_path")}
        if row.agent.strip():
            own = {"import_path" if ":" in row.agent else "name": row.agent.strip(), **own}
    if row.model.strip() != then.model.strip():
        own = put(own, ("model_name",), meant(row.model, "text"))
    return own


def _settled(own: Any, resolved: Any) -> Any:
    """``own`` with the absolute paths that ``resolved``, the same after planning, has in the place of its own."""
    if isinstance(own, dict) and isinstance(resolved, Mapping):
        return {key: _settled(value, resolved.get(key)) for key, value in own.items()}
    if isinstance(own, list) and isinstance(resolved, list) and len(own) == len(resolved):
        return [_settled(*pair) for pair in zip(own, resolved, strict=True)]
    if isinstance(own, str) and isinstance(resolved, str) and resolved.startswith("/") and not own.startswith("/"):
        end = str(PurePosixPath(own)).removeprefix("~")
        return resolved if end == "." or resolved.endswith(end) else own
    return own


form = HarborForm()
