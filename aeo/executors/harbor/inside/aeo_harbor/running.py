"""Runs trials one at a time, with Harbor's own queue and its retries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dotenv import load_dotenv
from harbor.agents.factory import AgentFactory
from harbor.environments.factory import EnvironmentFactory
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import TrialLock
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import ExceptionInfo, TrialResult
from harbor.trial.hooks import TrialEvent
from harbor.trial.queue import TrialQueue
from harbor.utils.env import resolve_env_vars

from aeo_harbor import paths, traces

Say = Callable[[Mapping[str, Any]], None]
#: Harbor's moments as the phases they begin.
_PHASES = {
    TrialEvent.START: "start",
    TrialEvent.ENVIRONMENT_START: "environment",
    TrialEvent.AGENT_START: "agent",
    TrialEvent.VERIFICATION_START: "verifier",
    TrialEvent.CANCEL: "cancelling",
}
#: Seconds a trial gets to end when nobody is there any more to hear of it.
_LAST_SECONDS = 60.0


async def serve(requests: int, say: Say) -> None:
    """Obey requests until their end; then, or at SIGTERM, cancel what runs."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(requests, "rb"))
    current: asyncio.Task[None] | None = None
    header: dict[str, Any] = {}

    def stop() -> None:
        # Once: a second time would break off what the first one has it do.
        if current is not None and not current.done() and not current.cancelling():
            current.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say({"event": "ready", "version": version("harbor")})
    while line := await reader.readline():
        request = json.loads(line)
        if request["verb"] == "header":
            header = request["header"]
        elif request["verb"] == "run":
            current = asyncio.create_task(_run_with_variables(header, request, say))
        else:
            stop()
    stop()
    if current is not None:
        await asyncio.wait([current], timeout=_LAST_SECONDS)


async def _run_with_variables(header: Mapping[str, Any], request: Mapping[str, Any], say: Say) -> None:
    with _given(request["environment"]):
        await _run(header, request, say)


@contextlib.contextmanager
def _given(environment: Mapping[str, str]) -> Iterator[None]:
    """Have these variables while a trial runs; the next one may get others, or none."""
    if _given_last != [environment]:
        # What Harbor checked of an agent may be another thing now.
        _checked.clear()
        _given_last[:] = [environment]
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


#: What the last trial was given.
_given_last: list[Mapping[str, str]] = []


async def _run(header: Mapping[str, Any], request: Mapping[str, Any], say: Say) -> None:
    retries = 0
    try:
        planned = TrialConfig.model_validate(request["config"])
        planned.trials_dir = Path(request["final_dir"]).parent
        job = JobConfig.model_validate(header["config"])
        local = planned.model_copy(update={"trials_dir": traces.folder("run")})

        async def note(event: Any) -> None:
            say({"event": "phase", "phase": _PHASES[event.event]})

        starts = 0

        async def count(_event: Any) -> None:
            nonlocal starts
            starts += 1

        queue = TrialQueue(n_concurrent=1, retry_config=job.retry)
        for moment in _PHASES:
            queue.add_hook(moment, note)
        queue.add_hook(TrialEvent.START, count)
        ending: BaseException | None = None
        try:
            _load_variables(request["env_file"])
            local = _localised(planned, header, request)
            _preflight(job, local, planned.agent)
            await queue.submit(local)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            ending = error
        retries = max(0, starts - 1)
        _deliver(planned, local, request, ending, retries)
        say({"event": "done", "retries": retries})
    except (Exception, asyncio.CancelledError) as error:
        traceback.print_exc()
        say({"event": "failed", "message": f"{type(error).__name__}: {error}"})


_checked: dict[str, BaseException | None] = {}


def _load_variables(path: str | None) -> None:
    """As ``harbor run --env-file`` does it."""
    if path is not None:
        load_dotenv(path, override=True)


def _preflight(job: JobConfig, trial: TrialConfig, planned: AgentConfig) -> None:
    """What Harbor's job checks before its trials, once per agent; a failure is each trial's own."""
    key = planned.model_dump_json()
    if key not in _checked:
        _checked[key] = None
        try:
            EnvironmentFactory.run_preflight(
                type=trial.environment.type,
                import_path=trial.environment.import_path,
                kwargs=trial.environment.kwargs,
            )
            skip = job.skip_credential_checks or job.install_only
            bridge = {} if trial.user_agent is None else {"bridge": trial.user_agent.bridge.kind}
            AgentFactory.run_preflight(trial.agent, skip_credential_checks=skip, **bridge)
            if trial.user_agent is not None:
                AgentFactory.run_preflight(trial.user_agent, skip_credential_checks=skip)
        except (Exception, SystemExit) as error:
            _checked[key] = error
    error = _checked[key]
    if isinstance(error, SystemExit):
        raise RuntimeError(f"Harbor's check before the trial failed: {error.code}")
    if error is not None:
        raise error


def _localised(planned: TrialConfig, header: Mapping[str, Any], request: Mapping[str, Any]) -> TrialConfig:
    """The same trial as it runs here: the task by its content, all paths this machine's."""
    local = TrialConfig.model_validate(request["local"])
    local.task = TaskConfig(path=Path(request["content"]), source=planned.task.source)
    local.trials_dir = traces.folder("run")
    traces.remove(local.trials_dir / local.trial_name)
    paths.unpack(local, header["files"], traces.folder("files"))
    # Harbor resolves ${NAME} in an agent's and a verifier's env, and in this one leaves it as it stands.
    local.environment.env = resolve_env_vars(local.environment.env)
    return local


def _deliver(
    planned: TrialConfig,
    local: TrialConfig,
    request: Mapping[str, Any],
    ending: BaseException | None,
    retries: int,
) -> None:
    """Move the trial's folder to where it belongs, its files saying what a run on one machine would say."""
    ran, target = local.trials_dir / local.trial_name, Path(request["trial_dir"])
    ran.mkdir(parents=True, exist_ok=True)
    result = _result(ran, planned) or _failed(ran, planned, request, ending or RuntimeError("Harbor left no result."))
    result.config = planned
    result.task_id = planned.task.get_task_id()
    result.trial_uri = Path(request["final_dir"]).as_uri()
    (ran / "config.json").write_text(planned.model_dump_json(indent=4))
    lock = TrialLock.model_validate(request["lock"])
    (ran / "lock.json").write_text(lock.model_dump_json(indent=4, exclude_none=True))
    if retries:
        # Harbor counts retries per job and keeps nothing of them in a trial; the merge needs the number.
        (ran / "aeo.json").write_text(json.dumps({"retries": retries}))
    (ran / "result.json").unlink(missing_ok=True)
    for entry in list(ran.iterdir()):
        shutil.move(entry, target / entry.name)
    temporary = target / ".result.json"
    temporary.write_text(result.model_dump_json(indent=4))
    temporary.replace(target / "result.json")
    traces.remove(ran)


def _result(ran: Path, planned: TrialConfig) -> TrialResult | None:
    # From the disk and not from memory: there Harbor has taken secrets out.
    with contextlib.suppress(OSError, ValueError):
        result = TrialResult.model_validate_json((ran / "result.json").read_bytes())
        if result.trial_name == planned.trial_name:
            return result
    return None


def _failed(ran: Path, planned: TrialConfig, request: Mapping[str, Any], error: BaseException) -> TrialResult:
    """The result of a trial that Harbor itself left none of: it could not be constructed, or was stopped before."""
    text, kind = "".join(traceback.format_exception(error)), type(error).__name__
    (ran / "exception.txt").write_text(text)
    return TrialResult(
        task_name=request["task"],
        trial_name=planned.trial_name,
        trial_uri="",
        task_id=planned.task.get_task_id(),
        source=planned.task.source,
        task_checksum=request["checksum"],
        config=planned,
        agent_info=request["info"],
        exception_info=ExceptionInfo(
            exception_type=kind,
            exception_message=str(error),
            exception_traceback=text,
            occurred_at=traces.now(),
            policy_override=planned.override_error_policy.get(kind),
        ),
        started_at=request["started_at"],
        finished_at=traces.now(),
    )
