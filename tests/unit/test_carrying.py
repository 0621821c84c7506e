"""What makes a trial what it is, by executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aeo.core.model import Asset, Plan, PlannedTrial, Spec
from aeo.core.rerun import differences
from aeo.executors import load
from aeo.executors.carrying import carrier_of

CONFIG: Mapping[str, Any] = {
    "trial_name": "x__1",
    "trials_dir": "jobs/x",
    "job_id": "j1",
    "task": {"path": "/tasks/t"},
    "agent_timeout_multiplier": 3.0,
    "agent": {"name": "a", "n_concurrent": 1, "skills": ["/skills/s"], "kwargs": {}},
}
FILES = {"/skills/s": {"SKILL.md": "-YQ=="}}


def harbor(
    files: Mapping[str, Any] = FILES, agent: Mapping[str, Any] | None = None, **changes: Any
) -> Mapping[str, Any]:
    config = {**CONFIG, "agent": {**CONFIG["agent"], **(agent or {})}, **changes}
    header = {"agents": [{"config": config, "lock": {}}], "files": files}
    trial = PlannedTrial(name="x__1", task="t", payload={"agent": 0, "config": {}, "lock": {}})
    return identity("harbor", Spec(executor="harbor", name="x"), Plan(trials=(trial,), header=header))


def identity(name: str, spec: Spec, plan: Plan) -> Mapping[str, Any]:
    carrier = carrier_of(load(name))
    assert carrier is not None
    (found,) = carrier.identities(spec, plan)
    return found


def test_names_places_and_limits_are_no_part_of_a_harbor_trial() -> None:
    other = harbor(
        agent={"n_concurrent": 9}, trial_name="y__2", trials_dir="jobs/y", job_id="j2", task={"path": "/moved/t"}
    )
    assert other == harbor()


def test_settings_and_the_content_of_files_are() -> None:
    assert differences(harbor(), harbor(agent_timeout_multiplier=1.0)) == "agent_timeout_multiplier is 1.0, was 3.0"
    assert differences(harbor(), harbor(agent={"kwargs": {"n": 1}})) == "agent.kwargs.n is 1, was not set"
    assert harbor(files={"/skills/s": {"SKILL.md": "-Yg=="}}) != harbor()
    moved = harbor(files={"/other/s": FILES["/skills/s"]}, agent={"skills": ["/other/s"]})
    assert moved == harbor()


def test_a_command_is_also_its_time_out() -> None:
    plan = Plan(trials=(PlannedTrial(name="x", task="t", payload={"id": "1", "task": {"argv": ["true"]}}),))
    one = identity("command", Spec(executor="command", name="x"), plan)
    assert one == {"task": {"argv": ["true"]}, "agent_timeout_multiplier": 1.0}
    assert identity("command", Spec(executor="command", name="x", agent_timeout_multiplier=2.0), plan) != one
    assert "agent_timeout_multiplier" not in identity("sleep", Spec(executor="sleep", name="x"), plan)


def test_the_content_of_what_a_configuration_names_is_and_secrets_are_not() -> None:
    def mounted(path: str, digest: str, secret: str = "s") -> Mapping[str, Any]:
        mount = {"type": "bind", "source": path, "target": "/in"}
        config = {
            **CONFIG,
            "agent": {"name": "codex", "kwargs": {"config": f"{path}/c"}},
            "environment": {"mounts": [mount]},
        }
        plan = Plan(
            trials=(PlannedTrial(name="x__1", task="t", payload={"agent": 0, "config": {}, "lock": {}}),),
            header={"agents": [{"config": config, "lock": {}}], "files": {}},
            assets=(
                Asset(path=path, digest=digest, name="d"),
                Asset(path="/keys.env", digest=secret, name="keys.env", private=True),
            ),
        )
        return identity("harbor", Spec(executor="harbor", name="x"), plan)

    assert mounted("/data", "d1") == mounted("/moved", "d1", secret="another")
    assert mounted("/data", "d1") != mounted("/data", "d2")
