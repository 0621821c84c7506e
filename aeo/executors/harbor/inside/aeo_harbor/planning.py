"""Resolves a job configuration into trials with Harbor's own planner."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harbor.environments.factory import EnvironmentFactory
from harbor.job_plan import JobPlan
from harbor.metrics.factory import MetricFactory
from harbor.metrics.uv_script import UvScript
from harbor.models.job import lock as job_lock
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import TrialConfig
from harbor.utils.env import get_required_host_vars
from pydantic import ValidationError

from aeo_harbor import agents, mounts, paths, timing
from aeo_harbor.faults import Faults, known_part

#: Key of a document that is not given as differences (see ``aeo.executors.harbor.trial_files``).
WHOLE = "*"
#: Trials of one job.
TRIAL_LIMIT = 200_000
#: What the platform takes as a name; Harbor itself takes more.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")


def plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the job of ``request`` (config, name, folder, agent_timeout_multiplier)."""
    config = _read(request)
    warnings = _settings_that_do_not_apply(config)
    warnings += paths.settle(config, request["folder"])
    _remember_hashes()
    _bound_trials()
    # Not the task's result: asyncio writes that out, whole, on its way to ending, and a plan is long.
    plans: list[JobPlan] = []
    with _remembering_metrics():
        asyncio.run(_resolve(config, plans))
    resolved = plans[0]
    _check_names(resolved)
    tasks = _load_tasks(resolved)
    warnings += mounts.check(request["config"], tuple(tasks.values()))
    warnings += [
        f"Dataset {name!r} has '__' in its name: Harbor finds no metrics for it."
        for name in sorted({item.source for item in resolved.task_configs if item.source and "__" in item.source})
    ]
    contents, keys = _contents(tasks)
    templates, trials = _trials(resolved, tasks, keys)
    return {
        "version": version("harbor"),
        "warnings": warnings,
        "contents": contents,
        "trials": trials,
        "header": {
            "job_id": str(resolved.id),
            "config": json.loads(resolved.config.model_dump_json()),
            "lock": json.loads(resolved.job_lock.model_dump_json(exclude={"trials"}, exclude_none=True)),
            "agents": templates,
            "metrics": {name: [_metric(item) for item in metrics] for name, metrics in resolved.metrics.items()},
            "files": paths.pack(resolved.config),
            "keys": [agents.keys(agent) for agent in resolved.config.agents],
            "task_keys": _task_keys(resolved, tasks),
        },
    }


def _read(request: Mapping[str, Any]) -> JobConfig:
    raw = request["config"]
    faults = Faults()
    for key, reason in (
        ("plugins", "Job plugins run inside one Harbor job on one machine; a distributed job has none."),
        ("source_jobs", "Regrades and diffs read another job's folders, which the workers do not have."),
    ):
        if raw.get(key):
            faults.add([key], reason, f"Remove {key!r}, or run this job with Harbor itself.")
    faults.stop()
    try:
        config = JobConfig.model_validate(json.loads(json.dumps(raw)), extra="forbid")
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            extra, missing = item["type"] == "extra_forbidden", item["type"] == "missing"
            message = "is no key Harbor knows." if extra else _sentence(item["msg"])
            faults.add(known_part(raw, item["loc"], missing=missing), message)
        raise faults from None
    except ValueError as error:
        faults.add([], _sentence(str(error)))
        raise faults from None
    if request["agent_timeout_multiplier"] is not None:
        config.agent_timeout_multiplier = request["agent_timeout_multiplier"]
    config.job_name = request["name"]
    # Where the job lies is the controller's business; it is filled in when the job's folder is made.
    config.jobs_dir = Path("jobs")
    if not config.agents:
        faults.add(["agents"], "names no agent.", "List at least one agent, or leave the key out for the oracle.")
    for index, agent in enumerate(config.agents):
        try:
            agents.check(agent)
        except (ValueError, ImportError) as error:
            faults.add(["agents", index], _sentence(str(error)))
    try:
        EnvironmentFactory.validate_options(config.environment)
    except (ValueError, ImportError) as error:
        faults.add(["environment"], _sentence(str(error)))
    faults.stop()
    return config


def _settings_that_do_not_apply(config: JobConfig) -> list[str]:
    warnings = []
    if "n_concurrent_trials" in config.model_fields_set and config.n_concurrent_trials != 4:
        warnings.append("n_concurrent_trials is only recorded: the workers' slots say how many trials run at once.")
    if any(agent.n_concurrent is not None for agent in config.agents):
        warnings.append("agents[].n_concurrent holds per slot, where trials run one at a time: it limits nothing.")
    return warnings


async def _resolve(config: JobConfig, plans: list[JobPlan]) -> None:
    try:
        plans.append(await JobPlan.from_config(config))
    except (ValueError, OSError, KeyError, LookupError) as error:
        faults = Faults()
        faults.add(await _culprit(config), _sentence(str(error) or type(error).__name__))
        raise faults from error


async def _culprit(config: JobConfig) -> list[str | int]:
    """The dataset that cannot be resolved on its own, if it is one."""
    for index, dataset in enumerate(config.datasets):
        try:
            await dataset.model_copy(deep=True).get_task_configs(disable_verification=config.verifier.disable)
        except Exception:
            return ["datasets", index]
    return [] if config.datasets or config.tasks else ["datasets"]


def _bound_trials() -> None:
    """Refuse a job of too many trials before they are made: a slip in n_attempts would fill the memory."""
    build = JobPlan.build_trial_configs

    def bounded(config: JobConfig, task_configs: list[Any], **fields: Any) -> list[TrialConfig]:
        count = config.n_attempts * len(task_configs) * len(config.agents)
        if count > TRIAL_LIMIT:
            raise ValueError(
                f"{len(task_configs)} tasks x {len(config.agents)} agents x {config.n_attempts} attempts are {count} "
                f"trials; {TRIAL_LIMIT} is the most."
            )
        return build(config, task_configs, **fields)

    JobPlan.build_trial_configs = staticmethod(bounded)


def _remember_hashes() -> None:
    """Harbor reads each task's files again for each of its trials; thousands of trials then take minutes."""
    job_lock.Packager.compute_content_hash = staticmethod(functools.cache(job_lock.Packager.compute_content_hash))
    for name in ("_task_package_version", "_task_verifier_environment_mode"):
        setattr(job_lock, name, functools.cache(getattr(job_lock, name)))


class _remembering_metrics:  # noqa: N801 - reads as a context
    """Lets each metric know what it was made from, to make it again at the end without a registry."""

    def __enter__(self) -> None:
        self._create = create = MetricFactory.create_metric

        def remember(metric_type: Any, **kwargs: Any) -> Any:
            metric = create(metric_type, **kwargs)
            metric._aeo_made_from = {"type": str(getattr(metric_type, "value", metric_type)), "kwargs": kwargs}
            return metric

        MetricFactory.create_metric = staticmethod(remember)

    def __exit__(self, *_: object) -> None:
        MetricFactory.create_metric = self._create


def _metric(metric: Any) -> dict[str, Any]:
    made_from = getattr(metric, "_aeo_made_from", {"type": type(metric).__name__.lower(), "kwargs": {}})
    if isinstance(metric, UvScript):
        return {"type": "uv-script", "script": metric._script_path.read_text()}
    return json.loads(json.dumps(made_from, default=str))


def _check_names(resolved: JobPlan) -> None:
    faults, seen, bad = Faults(), set(), set()
    for config in resolved.trial_configs:
        while config.trial_name in seen:
            config.trial_name = config.generate_trial_name()
        seen.add(config.trial_name)
        name = config.task.get_task_id().get_name()
        if name not in bad and (not _NAME.fullmatch(config.trial_name) or ".." in config.trial_name):
            bad.add(name)
            faults.add(
                paths.place_of(resolved.config, config.task),
                f"The task {name!r} gives trials a name that is no plain folder name.",
                "Name the task's folder with letters, digits and . _ - only, starting with a letter or digit.",
            )
    faults.stop()


def _load_tasks(resolved: JobPlan) -> dict[str, timing.Loaded]:
    """Each distinct task by the JSON of its reference; two different ones may not share a name."""
    faults, tasks, by_name = Faults(), {}, {}
    for config in resolved.task_configs:
        key = config.model_dump_json()
        if key in tasks:
            continue
        place = paths.place_of(resolved.config, config)
        folder = resolved.task_download_results[config.get_task_id()].path
        try:
            tasks[key] = loaded = timing.load(folder, disable_verification=resolved.config.verifier.disable)
        except Exception as error:  # whatever a folder from outside does to the libraries that read it
            faults.add(place, f"The task in {folder} is broken: {_sentence(str(error))}")
            continue
        if not _NAME.fullmatch(folder.name):
            faults.add(place, f"{folder.name!r} is no plain folder name for a task.")
        other = by_name.setdefault(loaded.name, folder)
        if other != folder:
            faults.add(place, f"Two tasks have the name {loaded.name!r}: {other} and {folder}.", "Rename one of them.")
    faults.stop()
    return tasks


def _task_keys(resolved: JobPlan, tasks: Mapping[str, timing.Loaded]) -> dict[str, str]:
    """Variables of the worker that tasks refer to without a default, each with the first task that does."""
    found: dict[str, str] = {}
    for task in tasks.values():
        config = task.task.config
        environments = [config.environment.env]
        if not resolved.config.verifier.disable:
            environments += [config.verifier.env, *(step.verifier.env for step in config.steps or [])]
        for environment in environments:
            for name, default in get_required_host_vars(environment):
                if default is None:
                    found.setdefault(name, task.name)
    return found


def _contents(tasks: Mapping[str, timing.Loaded]) -> tuple[list[dict[str, str]], dict[str, str]]:
    folders: dict[str, timing.Loaded] = {}
    keys = {}
    for reference, task in tasks.items():
        keys[reference] = task.key
        folders.setdefault(task.key, task)
    contents = [{"digest": key, "source": str(task.folder), "name": task.folder.name} for key, task in folders.items()]
    return contents, keys


def _trials(
    resolved: JobPlan, tasks: Mapping[str, timing.Loaded], keys: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Per agent what its trials share, and per trial what is its own: a plan of thousands stays small."""
    config = resolved.config
    templates: list[dict[str, Any]] = []
    #: What all attempts of one agent on one task share.
    shared: dict[tuple[int, int], dict[str, Any]] = {}
    trials = []
    per_attempt = len(resolved.task_configs) * len(config.agents)
    for number, (trial, lock) in enumerate(zip(resolved.trial_configs, resolved.trial_locks, strict=True)):
        task_number, index = divmod(number % per_attempt, len(config.agents))
        if (task_number, index) not in shared:
            reference = resolved.task_configs[task_number].model_dump_json()
            whole = _whole(trial, lock)
            if index == len(templates):
                templates.append({**whole, "info": agents.info(config.agents[index])})
            shared[task_number, index] = _planned(
                trial, tasks[reference], keys[reference], config, index, _differences(templates[index], whole)
            )
        common = shared[task_number, index]
        payload = common["payload"]
        named = {**payload, "config": _named(payload["config"], trial.trial_name)}
        trials.append({**common, "name": trial.trial_name, "payload": named})
    return templates, trials


def _named(difference: Mapping[str, Any], name: str) -> dict[str, Any]:
    if WHOLE in difference:
        return {WHOLE: {**difference[WHOLE], "trial_name": name}}
    return {**difference, "trial_name": name}


def _planned(
    trial: TrialConfig,
    task: timing.Loaded,
    key: str,
    config: JobConfig,
    index: int,
    differences: Mapping[str, Any],
) -> dict[str, Any]:
    agent = agents.info(config.agents[index])
    model = agent["model_info"] or {}
    labels = {
        "agent": agent["name"],
        "model": model.get("name"),
        "provider": model.get("provider"),
        "dataset": trial.task.source or "adhoc",
        **task.labels,
    }
    return {
        "task": task.name,
        "labels": {name: value for name, value in labels.items() if value},
        "content": key,
        **task.limits(trial, max_retries=config.retry.max_retries, retry=config.retry),
        "payload": {"agent": index, "checksum": task.checksum, **differences},
    }


def _whole(trial: TrialConfig, lock: job_lock.TrialLock) -> dict[str, Any]:
    return {
        "config": json.loads(trial.model_dump_json()),
        "lock": json.loads(lock.model_dump_json(exclude_none=True)),
    }


def _differences(template: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: _difference(template[kind], whole[kind]) for kind in ("config", "lock")}


def _difference(template: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``whole`` that differ; under `WHOLE` the whole when it has other keys than the template."""
    if template.keys() != whole.keys():
        return {WHOLE: dict(whole)}
    return {key: value for key, value in whole.items() if template[key] != value}


def _sentence(text: str) -> str:
    text = text.removeprefix("Value error, ").strip().rstrip(".")
    return text[:1].upper() + text[1:] + "."
