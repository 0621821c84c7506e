"""Which files a Harbor configuration names, and how others are put in their place: pure functions."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.errors import ExecutorFailed
from aeo.core.model import Plan, Spec
from aeo.executors import load, variables, wanted
from aeo.executors.assets import finder_of
from aeo.executors.harbor import assets
from aeo.executors.harbor.assets import HarborAssets

find = HarborAssets().find
placed = HarborAssets().placed


def bind(source: str, target: str = "/in", **more: Any) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, **more}


def mounting(*mounts: Any, **more: Any) -> dict[str, Any]:
    return {"environment": {"mounts": list(mounts)}, **more}


def paths(config: Mapping[str, Any], folder: str = "/here") -> dict[str, tuple[Any, ...]]:
    return {one.path: one.place for one in find(config, folder)}


def test_harbor_offers_a_finder_and_others_need_none() -> None:
    assert isinstance(finder_of(load("harbor")), HarborAssets)
    assert finder_of(load("sleep")) is None


def test_bind_mounts_in_every_form_harbor_takes() -> None:
    mounts = [
        bind("/data"),
        bind("/ro/", read_only=True, bind={"create_host_path": False, "selinux": "z"}),
        {"type": "volume", "source": "cache", "target": "/cache"},
        {"type": "image", "source": "debian", "target": "/image"},
    ]
    found = find(mounting(*mounts), "")
    assert [(one.path, one.writable, one.place) for one in found] == [
        ("/data", True, ("environment", "mounts", 0, "source")),
        ("/ro", False, ("environment", "mounts", 1, "source")),
    ]
    # The older name of the key counts where the newer one is missing.
    assert paths({"environment": {"mounts_json": [bind("/old")]}}) == {
        "/old": ("environment", "mounts_json", 0, "source")
    }
    assert paths({"environment": {"mounts": [], "mounts_json": [bind("/old")]}}) == {}


@pytest.mark.parametrize("source", ["${MODELS}/x", "${SOCK:-/var/run/docker.sock}", "./fixtures", "fixtures", "../x"])
def test_what_is_each_workers_own_is_not_named(source: str) -> None:
    config = mounting(bind(source))
    assert find(config, "/here") == ()
    assert assets.settled(config, "/here") == config
    assert placed(config, {"/here/fixtures": "/there"}) == config
    assert (source in "".join(assets.notes(config))) is ("$" in source)


def test_a_path_named_twice_is_one_and_may_be_written_to_if_one_may() -> None:
    (one,) = find(mounting(bind("/data", read_only=True), bind("/data/./", "/other")), "")
    assert (one.path, one.writable, one.place) == ("/data", True, ("environment", "mounts", 0, "source"))


def test_mounts_inside_each_other_are_named_each() -> None:
    config = mounting(bind("/data", read_only=True), bind("/data/out", "/out"))
    assert list(paths(config)) == ["/data", "/data/out"]
    new = placed(config, {"/data": "/w/1", "/data/out": "/w/2"})
    assert [mount["source"] for mount in new["environment"]["mounts"]] == ["/w/1", "/w/2"]


def test_what_agents_open_on_their_host() -> None:
    agents = [
        {"name": "claude-code", "kwargs": {"config": "settings.json", "prompt_template_path": "/t/template"}},
        {"name": "claude-code", "kwargs": {"config": {"model": "x"}}},
        {"name": "claude-code", "kwargs": {"config": '{"model": "x"}'}},
        {"name": "langgraph", "kwargs": {"config": "langgraph.json", "project_path": "../project"}},
        {"name": "oracle", "kwargs": {"config": "/no/file/of/it"}},
        {"import_path": "my:Agent", "kwargs": {"config": "/in/the/container", "prompt_template_path": "t.j2"}},
    ]
    assert paths({"agents": agents}) == {
        "/t/template": ("agents", 0, "kwargs", "prompt_template_path"),
        "/here/settings.json": ("agents", 0, "kwargs", "config"),
        "/project": ("agents", 3, "kwargs", "project_path"),
        "/here/t.j2": ("agents", 5, "kwargs", "prompt_template_path"),
    }
    settled = assets.settled({"agents": agents}, "/here")["agents"]
    assert settled[0]["kwargs"] == {"config": "/here/settings.json", "prompt_template_path": "/t/template"}
    assert settled[3]["kwargs"] == {"config": "langgraph.json", "project_path": "/here/../project"}
    assert settled[1:3] == agents[1:3]
    # Nobody knows to what: it stays, and is refused with its place.
    assert paths({"agents": agents[:1]}, "") == {
        "/t/template": ("agents", 0, "kwargs", "prompt_template_path"),
        "settings.json": ("agents", 0, "kwargs", "config"),
    }


def test_a_file_below_a_mount_travels_with_it() -> None:
    agent = {"name": "claude-code", "kwargs": {"config": "/data/settings.json"}}
    assert list(paths(mounting(bind("/data", "/data"), agents=[agent]))) == ["/data"]


def test_the_env_file_holds_secrets_and_is_not_recorded() -> None:
    config = {"env_file": ".env", "agents": []}
    (one,) = find(config, "/here")
    assert (one.path, one.place, one.private, one.writable) == ("/here/.env", ("env_file",), True, False)
    assert assets.settled(config, "/here") == {"agents": []}
    assert assets.env_file(config, "/here") == "/here/.env"
    assert assets.env_file(config, "") == ".env"
    assert assets.env_file({}, "/here") == ""


def test_the_env_file_is_found_however_it_is_written() -> None:
    config = {"env_file": "//here//x/../.env"}
    (one,) = HarborAssets().find(config, "")
    assert assets.env_file_place(assets.env_file(config, ""), {one.path: "/there"}) == "/there"
    assert assets.env_file_place("", {}) is None
    with pytest.raises(ExecutorFailed, match="did not come along"):
        assets.env_file_place("/here/.env", {})


def test_what_the_plan_carries_is_named_as_such() -> None:
    config = {
        "extra_instruction_paths": ["/a/more.md", "more.md"],
        "environment": {"extra_docker_compose": ["/a/compose.yaml"]},
        "agents": [{"load_trajectory": "/a/t.jsonl", "skills": ["/a/skill", 3, "org/name"]}, None],
        "user_agent": {"user_persona_path": "/a/persona", "bridge": {"prompt_path": "/a/prompt"}},
        "metrics": [{"type": "uv-script", "kwargs": {"script_path": "score.py"}}, "x"],
    }
    found = find(config, "/here")
    assert all(one.packed for one in found)
    assert {one.path: one.place for one in found} == {
        "/a/more.md": ("extra_instruction_paths", 0),
        "/here/more.md": ("extra_instruction_paths", 1),
        "/a/compose.yaml": ("environment", "extra_docker_compose", 0),
        "/a/t.jsonl": ("agents", 0, "load_trajectory"),
        "/a/skill": ("agents", 0, "skills", 0),
        "/a/persona": ("user_agent", "user_persona_path"),
        "/a/prompt": ("user_agent", "bridge", "prompt_path"),
        "/here/score.py": ("metrics", 0, "kwargs", "script_path"),
    }
    # One that is mounted, too, is sent.
    (both,) = find({**mounting(bind("/a")), "extra_instruction_paths": ["/a"]}, "")
    assert not both.packed


def test_home_is_the_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/aeo")
    config = mounting(bind("~/data"), env_file="~/.env")
    assert list(paths(config)) == ["/home/aeo/data", "/home/aeo/.env"]
    assert assets.settled(config, "/here") == mounting(bind("/home/aeo/data"))


def test_kwargs_that_are_a_found_path_or_lie_below_one_are_placed() -> None:
    kwargs = {
        "exact": "/data",
        "below": "/data/a/../b",
        "deep": {"list": ["/data/x", "/database", "data/x", 3, None], "no": True},
        "text": "see /data/x",
        "other": "/elsewhere",
    }
    config = mounting(
        bind("/data", "/in"), agent={"name": "oracle", "kwargs": kwargs}, verifier={"kwargs": {"d": "/data"}}
    )
    new = placed(config, {"/data": "/w/data"})
    assert new["agent"]["kwargs"] == {
        **kwargs,
        "exact": "/w/data",
        "below": "/w/data/b",
        "deep": {"list": ["/w/data/x", "/database", "data/x", 3, None], "no": True},
    }
    assert new["verifier"]["kwargs"] == {"d": "/w/data"}


def test_a_kwarg_below_a_target_means_the_container_unless_the_agent_opens_it() -> None:
    agent = {"name": "codex", "kwargs": {"config": "/data/config.toml", "workdir": "/data/work"}}
    new = placed(mounting(bind("/data", "/data"), agent=agent), {"/data": "/w/data"})
    assert new["agent"]["kwargs"] == {"config": "/w/data/config.toml", "workdir": "/data/work"}
    assert new["environment"]["mounts"] == [bind("/w/data", "/data")]


@pytest.mark.parametrize(
    "config",
    [
        {"environment": None, "agents": None, "agent": 3, "verifier": "x", "env_file": 5},
        {"environment": {"mounts": "x"}, "agents": [None, 1, {"kwargs": "x"}, {"name": 3, "kwargs": {"config": 5}}]},
        {"environment": {"mounts": [None, "a:b", {"type": "bind"}, {"type": "bind", "source": 3}, bind("a\0b")]}},
        {"environment": {"mounts": [{"type": "bind", "source": "", "target": None}], "mounts_json": 3}},
    ],
)
def test_what_harbor_will_refuse_does_no_harm_here(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    assert find(config, "/here") == ()
    assert placed(config, {"/a": "/b"}) == before
    assets.settled(config, "/here")
    assert assets.notes(config) == ()
    assert config == before


_NAMES = st.sampled_from(["a", "b", "data", "data.d", "ü x"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_TARGETS = _PATHS.map(lambda path: "/target" + path)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | _PATHS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_MOUNTS = st.lists(
    st.builds(
        lambda source, target, more: bind(source, target, **more),
        _PATHS,
        _TARGETS,
        st.sampled_from([{}, {"read_only": True}]),
    )
    | st.builds(lambda name: {"type": "volume", "source": name, "target": "/v"}, _NAMES),
    max_size=4,
)
_KWARGS = st.dictionaries(st.sampled_from(["config", "prompt_template_path", "x", "y"]), _JSON, max_size=3)
_AGENTS = st.builds(
    lambda name, kwargs: {"name": name, "kwargs": kwargs}, st.sampled_from(["codex", "oracle"]), _KWARGS
)
_CONFIGS = st.fixed_dictionaries(
    {
        "environment": st.fixed_dictionaries({"mounts": _MOUNTS}),
        "agents": st.lists(_AGENTS, max_size=2),
        "verifier": st.builds(lambda kwargs: {"kwargs": kwargs}, _KWARGS),
    }
)


def _places(config: Mapping[str, Any]) -> dict[str, str]:
    return {one.path: f"/worker/{number}" for number, one in enumerate(find(config, "/here"))}


@given(_CONFIGS)
def test_putting_in_place_and_back_changes_nothing(config: dict[str, Any]) -> None:
    config = assets.settled(config, "/here")
    before, there = copy.deepcopy(config), _places(config)
    new = placed(config, there)
    assert config == before
    assert placed(new, {place: path for path, place in there.items()}) == before
    assert placed(config, {}) == before


@given(_CONFIGS)
def test_nothing_that_was_found_is_left_and_nothing_else_is_touched(config: dict[str, Any]) -> None:
    config = assets.settled(config, "/here")
    there = _places(config)
    new = placed(config, there)
    # Whatever is found in the new one lies on the worker.
    assert all(one.path.startswith("/worker/") for one in find(new, "/here"))
    for old, now in zip(config["environment"]["mounts"], new["environment"]["mounts"], strict=True):
        assert {**now, "source": old["source"]} == old
        assert now["source"] == there.get(old["source"], old["source"]) if old["type"] == "bind" else now == old
    leaves = json.dumps(new, ensure_ascii=False)
    for path in there:
        assert f'"{path}"' not in leaves
        assert f'"{path}/' not in leaves


@given(_CONFIGS)
def test_finding_does_not_depend_on_settling_twice(config: dict[str, Any]) -> None:
    settled = assets.settled(config, "/here")
    assert assets.settled(settled, "/elsewhere") == settled
    assert find(settled, "/elsewhere") == find(config, "/here")


def test_what_the_env_file_sets_is_asked_of_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("# keys\nA_KEY=x\nEMPTY_KEY=\n")
    names = variables.names(tmp_path / "my.env")
    assert names == ("A_KEY",)
    assert variables.names(tmp_path / "gone") == ()
    env = {name: f"${{{name}}}" for name in ("A_KEY", "EMPTY_KEY", "B_KEY")}
    spec = Spec(executor="harbor", name="x", config={"agents": [{"name": "oracle", "env": env}]})
    plan = Plan(trials=(), header={"env_names": list(names)})
    assert [one.any_of for one in wanted(load("harbor"), spec, plan)] == [("EMPTY_KEY",), ("B_KEY",)]
    assert len(wanted(load("harbor"), spec, Plan(trials=()))) == 3
