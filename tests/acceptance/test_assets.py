"""Files that a Harbor configuration names, on a worker that reaches the controller's disk only by rsync.

The worker sees neither the controller's folder nor the files where the configuration names them: empty file systems
lie over both, in a mount namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import pytest
import yaml
from harbor_tasks import HOST
from needs import require
from platforms import Platform
from programs import Program
from rsync_hosts import PASSWORD, missing, rsync_daemon
from waiting import eventually

from aeo.executors.harbor.assets import HOST_KWARGS
from aeo.executors.harbor.python import harbor_python, plugin_path

IMAGE = "debian:bookworm"
#: A command in a mount namespace of its own.
APART = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
SECRET = "sk-0123456789abcdefghijklmnop"
#: Reads on its host what it was given and puts it into the environment, as agents do with templates and settings.
AGENT = """
import os
import shlex
from pathlib import Path

from harbor.agents.base import BaseAgent


class Reader(BaseAgent):
    def __init__(self, logs_dir, *args, settings=None, prompt_template_path=None, **kwargs):
        super().__init__(logs_dir, *args, **kwargs)
        self._files = {"settings": settings, "template": prompt_template_path}

    @staticmethod
    def name():
        return "reader"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        for name, path in self._files.items():
            if path is not None:
                text = shlex.quote(Path(path).read_text())
                await environment.exec(f"printf %s {text} > /app/{name}")
        (self.logs_dir / "said").write_text(f"the token is {os.environ.get('READER_TOKEN')}")
        found = os.environ.get("READER_TOKEN") == os.environ.get("READER_EXPECTED") != None
        await environment.exec(f"echo {found} > /app/token; ls -la /data >> /logs/agent/seen 2>&1; "
                               "echo no > /data/new && echo yes > /app/written; "
                               "echo mine >> /scratch/notes && cp /scratch/notes /app/notes")
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    require(not missing("rsync", "unshare"), missing("rsync", "unshare"))
    tasks.needed_harbor()
    hiding = subprocess.run([*APART, "true"], capture_output=True, check=False)
    require(hiding.returncode == 0, "the right to make a mount namespace")
    folder = tmp_path_factory.mktemp("assets")
    for name in ("modules", "given", "own"):
        (folder / name).mkdir()
    (folder / "own" / "word").write_text("this machine's")
    (folder / "modules" / "reading_agent.py").write_text(AGENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER_OWN", str(folder / "own"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), f"{folder}/modules"])))
        made = Platform(folder)
        try:
            made.ready()
            with rsync_daemon(made.shared, folder / "rsyncd") as daemon:
                made.programs.append(far_worker(made, daemon.url))
                made.api.await_worker("far", timeout=120)
                yield made
                made.stop()
        finally:
            made.destroy()


def far_worker(platform: Platform, url: str, *more: str) -> Program:
    covered = (platform.shared, platform.folder / "given")
    hide = " && ".join(f"mount -t tmpfs none {path}" for path in covered)
    arguments = ["worker", "--controller-url", platform.url, "--worker-id", "far", "--slots", "2"]
    arguments += ["--local-root", str(platform.folder / "far"), "--transfer-url", url, *more]
    return Program(
        arguments,
        platform.folder,
        {"AEO_TRANSFER_PASSWORD": PASSWORD},
        before=[*APART, "sh", "-c", f'{hide} && exec "$@"', "sh"],
    )


def given(platform: Platform) -> Path:
    """What the configurations here name."""
    folder = platform.folder / "given"
    if not (folder / "data").exists():
        (folder / "data" / "deep").mkdir(parents=True)
        (folder / "data" / "settings.json").write_text('{"word": "right"}')
        (folder / "data" / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (folder / "data" / "deep" / "run.sh").chmod(0o755)
        (folder / "data" / "same.json").symlink_to("settings.json")
        (folder / "template.txt").write_text("Please: {{ instruction }}")
        (folder / "notes").mkdir()
        (folder / "notes" / "notes").write_text("first\n")
        (folder / "keys.env").write_text(f"# keys\nexport READER_TOKEN='{SECRET}'\nREADER_EXPECTED=\"{SECRET}\"\n")
    return folder


def harbor_run(config: Path, jobs: Path, name: str, *more: str, modules: Path) -> Path:
    """The job that Harbor itself makes of the same, on this machine."""
    path = os.pathsep.join((str(plugin_path()), str(modules)))
    environment = {**os.environ, "PYTHONPATH": path, "HARBOR_TELEMETRY": "0", "COLUMNS": "200"}
    command = [str(harbor_python(create=False).path), "-m", "harbor.cli.main", "run", "-c", str(config)]
    options = ["-o", str(jobs), "--job-name", name, "-y", *more]
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return jobs / name


def recorded(job: Path) -> dict[str, Any]:
    """What a job says of its configuration, and its trials of theirs, without what names this very job."""
    own = json.loads((job / "config.json").read_text())
    for key in ("job_name", "jobs_dir"):
        own.pop(key, None)
    trials = {}
    for path in job.glob("*/config.json"):
        config = json.loads(path.read_text())
        for key in ("trial_name", "trials_dir", "job_id"):
            config.pop(key)
        result = json.loads((path.parent / "result.json").read_text())
        inner = {key: value for key, value in result["config"].items() if key in config}
        trials[result["task_name"]] = (config, inner, result["verifier_result"])
    return {"job": own, "trials": trials}


def text_of(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def configuration(platform: Platform, tasks_dir: Path, environment: Mapping[str, Any]) -> dict[str, Any]:
    """A read-only and a writable mount, a file below a mount, a file of its own, and what each machine has."""
    folder = given(platform)
    kwargs = {
        "settings": str(folder / "data" / "settings.json"),
        "prompt_template_path": str(folder / "template.txt"),
    }
    mounts = [
        {"type": "bind", "source": str(folder / "data"), "target": "/data", "read_only": True},
        {"type": "bind", "source": str(folder / "notes"), "target": "/scratch"},
        # Each machine's own, by a variable.
        {"type": "bind", "source": f"${{READER_OWN:-{platform.folder}/nowhere}}", "target": "/own", "read_only": True},
    ]
    return {
        "quiet": True,
        "agents": [{"import_path": "reading_agent:Reader", "kwargs": kwargs}],
        "environment": {**environment, "mounts": mounts},
        "datasets": [{"path": str(tasks_dir)}],
    }


def check_both(platform: Platform, name: str, config: dict[str, Any], scratch: Path) -> None:
    """All trials pass, and the job says what Harbor's own says; nothing is left where it must not be."""
    folder, far = given(platform), platform.folder / "far"
    plain, ours = scratch / "plain.yaml", scratch / "ours.yaml"
    plain.write_text(yaml.safe_dump(config))
    ours.write_text(yaml.safe_dump({**config, "env_file": str(folder / "keys.env")}))
    submitted = platform.aeo("submit", str(ours), "--name", name, "--wait", "--per-worker-concurrency", "all")
    assert submitted.ends(240) == 0, submitted.output
    job = platform.job(name)
    found = recorded(job)
    assert [result for _, _, result in found["trials"].values()] == [{"rewards": {"reward": 1.0}}] * 2, text_of(job)
    # Trials write to copies of their own.
    assert (folder / "notes" / "notes").read_text() == "first\n"
    single = harbor_run(
        plain, scratch, name, "--env-file", str(folder / "keys.env"), modules=platform.folder / "modules"
    )
    assert found == recorded(single)
    (folder / "notes" / "notes").write_text("first\n")
    assert SECRET not in text_of(job)
    assert "the token is ${READER_" in text_of(job)
    # What one worker needs of one content came once; what holds secrets, or was written to, went with its batch.
    eventually(lambda: not list(far.glob("batches/*")), 60)
    kept = sorted(far.glob("tasks/*/asset/*"))
    assert sorted(path.name for path in kept) == ["data", "notes", "template.txt"]
    assert [(path / "notes").read_text() for path in kept if path.name == "notes"] == ["first\n"]
    assert SECRET not in text_of(far)
    assert not platform_says(platform, SECRET)


def platform_says(platform: Platform, secret: str) -> list[Path]:
    """Where a secret stands that is neither its own file nor that file's one copy."""
    own = {platform.folder / "given" / "keys.env", *platform.shared.glob("tasks/*/asset/keys.env")}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in own - {platform.folder / "given" / "keys.env"})
    files = [path for path in platform.folder.rglob("*") if path.is_file() and path not in own]
    return [path for path in files if secret.encode() in path.read_bytes()]


#: What must be so inside.
CHECKS = (
    "grep -q right /app/settings && grep -q Please /app/template && grep -q right /data/same.json"
    " && test -x /data/deep/run.sh && /data/deep/run.sh | grep -q ran && ! test -e /app/written"
    " && grep -q machine /own/word && ! test -e /data/new && grep -q True /app/token"
    " && test $(wc -l < /app/notes) -ge 2"
)


def written(folder: Path) -> Path:
    """Two tasks."""
    for name in ("one", "two"):
        tasks.task(folder / name, test=f"({CHECKS}); echo $((1 - $?)) > /logs/verifier/reward.txt")
    return folder


def test_bind_mounts_in_the_host_environment(platform: Platform, tmp_path: Path) -> None:
    require(tasks.namespaces_work(), "user namespaces")
    config = configuration(platform, written(platform.folder / "set"), HOST)
    check_both(platform, "hosted", config, tmp_path)


@pytest.mark.docker
def test_bind_mounts_in_containers(platform: Platform, tmp_path: Path) -> None:
    require(shutil.which("docker"), "the docker command")
    answers = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False, timeout=60)
    require(answers.returncode == 0, f"a Docker engine with the image {IMAGE}")
    folder = written(platform.folder / "contained")
    for task in folder.iterdir():
        (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
        (task / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    init: true\n")
    check_both(platform, "mounted", configuration(platform, folder, {"type": "docker"}), tmp_path)


def test_a_rerun_reads_again_and_says_what_changed(platform: Platform) -> None:
    if not platform.job("hosted").exists():
        pytest.skip("there is no first run")
    data = given(platform) / "data"
    (data / "more").write_text("more")
    try:
        check = platform.aeo("rerun", "hosted", "--check")
        check.ends(120)
    finally:
        (data / "more").unlink()
    assert f"{data} was read again, and is not what it was in hosted" in check.output


def test_what_is_missing_on_the_controller_is_refused_there(platform: Platform, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    config = configuration(platform, written(platform.folder / "set"), HOST)
    config["environment"]["mounts"][0]["source"] = str(gone)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(config))
    refused = platform.aeo("submit", str(path), "--name", "refused")
    assert refused.ends(120) == 2
    assert f"{gone} does not exist on the controller." in refused.output
    assert "job.yaml:" in refused.output
    assert not platform.job("refused").exists()


def test_harbor_opens_what_the_table_says(platform: Platform) -> None:
    """Every kwarg of our table is one that Harbor's agent takes; ``config`` may be a path where the agent says so."""
    code = (
        "import json\n"
        "from harbor.agents.factory import AgentFactory as F\n"
        "from harbor.models.agent.name import AgentName\n"
        "from harbor.models.trial.config import AgentConfig\n"
        "out = {}\n"
        "for name in AgentName:\n"
        "    try: agent = F.get_agent_class_from_config(AgentConfig(name=name.value))\n"
        "    except ValueError: continue\n"
        "    fields = agent.options_model.model_fields if agent.options_model else {}\n"
        "    names = set(fields) | {c for f in fields.values() for c in getattr(f.validation_alias, 'choices', ())}\n"
        "    out[name.value] = [agent.capabilities.native_config, sorted(names)]\n"
        "print(json.dumps(out))\n"
    )
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HARBOR_TELEMETRY": "0"}
    command = [str(harbor_python(create=False).path), "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    agents = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, (native, _) in agents.items() if native} == {
        name for name, kwargs in HOST_KWARGS.items() if "config" in kwargs
    }
    for name, kwargs in HOST_KWARGS.items():
        assert set(kwargs) <= set(agents[name][1]), name


def test_a_worker_cleans_assets_up_as_task_copies(platform: Platform) -> None:
    far = platform.folder / "far"
    assert list(far.glob("tasks/*/asset/data"))
    old = platform.programs.pop()
    command = old.process.cmdline()
    assert old.terminate() == 0, old.output
    url = command[command.index("--transfer-url") + 1]
    platform.programs.append(far_worker(platform, url, "--clean-above", "0.000001", "--clean-days", "0.000001"))
    eventually(lambda: not list(far.glob("tasks/*/*")), 60)
