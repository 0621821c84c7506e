"""Finds the files that a Harbor configuration names beside its tasks, and puts others in their place.

Files that Harbor itself reads whole, such as extra instructions and skills, travel inside the plan (see
``inside/aeo_harbor/paths.py``). Here is what stays files: bind mounts, what agents open on their host, the env file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from aeo.core.errors import ExecutorFailed
from aeo.executors.assets import Reference

#: Harbor's flag ``--env-file`` as a key of a configuration. It is none of Harbor's, and not recorded with the job.
ENV_FILE = "env_file"
#: What every agent that Harbor installs opens on its host.
_COMMON = ("prompt_template_path",)
_TARBALLS = ("tarball_path", "tarball-path", "local-tarball-path")
#: What agents of Harbor 0.26 open on their host beside that: agent to kwargs. Where an agent takes a path or a mapping,
#: only a text is a path.
HOST_KWARGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("claude-code", "codex", "junie", "muse-code", "openhands-sdk", "qwen-coder"), ("config",)),
    "acp": ("registry_entry_path",),
    "antigravity-cli": ("binary_path",),
    "cline-cli": (*_TARBALLS, "plugin_tarball_path", "plugin-tarball-path", "local-plugin-tarball-path"),
    "deerflow": ("config", "config_path"),
    "eve": ("path",),
    "fabric": ("fabric_config_bundle",),
    "langgraph": ("project_path",),
    "mini-swe-agent": ("config_file", "litellm_model_registry_file"),
    "nemo-agent": ("config_file",),
    "strands": ("factory_path",),
}
_Place = tuple["str | int", ...]


class HarborAssets:
    """See `aeo.executors.assets.AssetFinder`."""

    def find(self, config: Mapping[str, Any], folder: str) -> tuple[Reference, ...]:
        """Bind mounts by an absolute path without variables, what agents open, what the plan carries, the env file."""
        found: dict[str, Reference] = {}
        for mount, place in _mounts(config):
            path = _normal(mount["source"])
            if not own(mount["source"]):
                _add(found, Reference(path=path, place=(*place, "source"), writable=not mount.get("read_only")))
        mounted = tuple(found)
        for kwargs, key, place in _opened(config):
            path = _normal(_joined(kwargs[key], folder))
            if _around(path, mounted) is None:
                _add(found, Reference(path=path, place=(*place, key)))
        for name, place in _packed(config):
            path = _normal(_joined(name, folder))
            if path.startswith("/"):
                _add(found, Reference(path=path, place=place, packed=True))
        name = env_file(config, folder)
        if name:
            _add(found, Reference(path=_normal(name), place=(ENV_FILE,), private=True))
        return tuple(found.values())

    def placed(self, config: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
        """Sources of mounts, and kwargs that are such a path or lie below one.

        A kwarg that lies below a mount's target means the container, unless its agent is known to open it on the host.
        """
        new = copy.deepcopy(dict(config))
        targets = tuple(_normal(mount["target"]) for mount, _ in _mounts(new) if isinstance(mount.get("target"), str))
        for mount, _ in _mounts(new):
            if not own(mount["source"]):
                mount["source"] = places.get(_normal(mount["source"]), mount["source"])
        opened = {(id(kwargs), key) for kwargs, key, _ in _opened(new)}
        for kwargs, _ in _kwargs(new):
            for key, value in kwargs.items():
                stay = () if (id(kwargs), key) in opened else targets
                kwargs[key] = _moved(value, places, stay)
        return new


def settled(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The configuration as Harbor gets it and records it: without the env file, what starts from ``folder`` or ``~``
    absolute."""
    new = copy.deepcopy({key: value for key, value in config.items() if key != ENV_FILE})
    for mount, _ in _mounts(new):
        if mount["source"].startswith("~") and not own(mount["source"]):
            mount["source"] = _joined(mount["source"], folder)
    for kwargs, key, _ in list(_opened(new)):
        if folder or kwargs[key].startswith("~"):
            kwargs[key] = _joined(kwargs[key], folder)
    return new


def env_file(config: Mapping[str, Any], folder: str) -> str:
    """Absolute path of the env file; "" if there is none."""
    name = config.get(ENV_FILE)
    return _joined(name, folder) if isinstance(name, str) and name else ""


def env_file_place(name: str, places: Mapping[str, str]) -> str | None:
    """Where the env file of a configuration lies; None if it names none.

    Raises:
        ExecutorFailed: it names one that was not brought.
    """
    if not name:
        return None
    try:
        return places[_normal(name)]
    except KeyError:
        raise ExecutorFailed(f"the env file {name} did not come along.") from None


def notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a person should know of mounts that are not sent."""
    sources = sorted({mount["source"] for mount, _ in _mounts(config) if "$" in mount["source"]})
    return tuple(f"The mount of {source} is each worker's own: it is not sent." for source in sources)


def own(source: str) -> bool:
    """Whether a mount's source is each worker's own: it has a variable, or it lies in the task's environment folder,
    from where Docker reads relative ones."""
    return "$" in source or not source.startswith(("/", "~"))


def _add(found: dict[str, Reference], one: Reference) -> None:
    first = found.setdefault(one.path, one)
    if first is not one:
        found[one.path] = Reference(
            path=one.path,
            place=first.place,
            writable=first.writable or one.writable,
            private=first.private or one.private,
            packed=first.packed and one.packed,
        )


def _mounts(config: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], _Place]]:
    """Bind mounts, and where they stand."""
    environment = config.get("environment")
    if not isinstance(environment, Mapping):
        return
    # An older name, which Harbor reads where the newer one is missing.
    key = "mounts" if "mounts" in environment else "mounts_json"
    mounts = environment.get(key)
    for index, mount in enumerate(mounts if isinstance(mounts, list) else ()):
        if isinstance(mount, dict) and mount.get("type") == "bind" and _is_path(mount.get("source")):
            yield mount, ("environment", key, index)


def _kwargs(config: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], _Place]]:
    """What agents and the verifier are given, of a job or of a trial."""
    agents = config.get("agents")
    holders: list[tuple[Any, _Place]] = [
        *((agent, ("agents", index)) for index, agent in enumerate(agents if isinstance(agents, list) else ())),
        *((config.get(name), (name,)) for name in ("agent", "user_agent", "verifier")),
    ]
    for holder, place in holders:
        kwargs = holder.get("kwargs") if isinstance(holder, Mapping) else None
        if isinstance(kwargs, dict):
            yield kwargs, (*place, "kwargs")


def _opened(config: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, _Place]]:
    """What Harbor opens on its host of what agents are given."""
    for kwargs, place in _kwargs(config):
        if place[0] == "verifier":
            continue
        agent: Any = config[str(place[0])]
        agent = agent[place[1]] if place[0] == "agents" else agent
        name = agent.get("name") if agent.get("import_path") is None else None
        for key in (*_COMMON, *HOST_KWARGS.get(str(name), ())):
            if _is_path(kwargs.get(key)):
                yield kwargs, key, place


def _packed(config: Mapping[str, Any]) -> Iterator[tuple[str, _Place]]:
    """Files whose content goes into the plan, and where they stand (see ``inside/aeo_harbor/paths.py``)."""
    environment, user = _part(config, "environment"), _part(config, "user_agent")
    lists: list[tuple[Any, _Place]] = [
        (config.get("extra_instruction_paths"), ("extra_instruction_paths",)),
        (environment.get("extra_docker_compose"), ("environment", "extra_docker_compose")),
    ]
    ones: list[tuple[Any, _Place]] = [
        *((user.get(key), ("user_agent", key)) for key in ("user_persona_path", "user_prompt_template_path")),
        (_part(user, "bridge").get("prompt_path"), ("user_agent", "bridge", "prompt_path")),
    ]
    for index, agent in enumerate(config["agents"] if isinstance(config.get("agents"), list) else ()):
        if isinstance(agent, Mapping):
            ones.append((agent.get("load_trajectory"), ("agents", index, "load_trajectory")))
            lists.append((agent.get("skills"), ("agents", index, "skills")))
    for index, metric in enumerate(config["metrics"] if isinstance(config.get("metrics"), list) else ()):
        if isinstance(metric, Mapping):
            ones.append((_part(metric, "kwargs").get("script_path"), ("metrics", index, "kwargs", "script_path")))
    ones += [(item, (*place, n)) for items, place in lists if isinstance(items, list) for n, item in enumerate(items)]
    for value, place in ones:
        # A skill may also be a name or an address.
        if _is_path(value) and ("skills" not in place or value.startswith(("/", "./", "../", "~"))):
            yield value, place


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def _is_path(value: Any) -> bool:
    # An agent may take a path or JSON.
    return isinstance(value, str) and bool(value) and "\0" not in value and not value.lstrip().startswith("{")


def _joined(path: str, folder: str) -> str:
    """Absolute, as far as that is known, and otherwise as it was written: it is recorded."""
    path = os.path.expanduser(path)  # noqa: PTH111
    return path if path.startswith("/") or not folder else str(PurePosixPath(folder, path))


def _normal(path: str) -> str:
    path = os.path.normpath(os.path.expanduser(path))  # noqa: PTH111
    # POSIX lets two slashes at the start mean something else; nobody here does.
    return "/" + path.lstrip("/") if path.startswith("/") else path


def _around(path: str, folders: tuple[str, ...]) -> str | None:
    """The innermost of ``folders`` that is ``path`` or has it inside."""
    inside = [one for one in folders if path == one or path.startswith(one.rstrip("/") + "/")]
    return max(inside, key=len, default=None)


def _moved(value: Any, places: Mapping[str, str], stay: tuple[str, ...]) -> Any:
    """A value with the paths in it put in their places, those below ``stay`` aside."""
    if isinstance(value, str):
        if not value.startswith(("/", "~")):
            return value
        path = _normal(value)
        around = None if _around(path, stay) else _around(path, tuple(places))
        return value if around is None else places[around] + path[len(around) :]
    if isinstance(value, Mapping):
        return {key: _moved(item, places, stay) for key, item in value.items()}
    return [_moved(item, places, stay) for item in value] if isinstance(value, list) else value
