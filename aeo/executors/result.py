"""A trial folder in Harbor's layout: what our own executors write into it, and what can be read from it.

::

    <trial>/
    ├── config.json         what was to run
    ├── trial.log
    ├── agent/  verifier/   the executor's own files
    ├── exception.txt       the error, if there is one
    └── result.json         written last: a folder that has it is complete
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Outcome, PlannedTrial, TrialSummary
from aeo.executors.statistics import CANCELLED

#: Largest ``result.json`` that is read, bytes.
SIZE_LIMIT = 4 * 1024 * 1024
#: Characters of an error message that are kept in a summary.
MESSAGE_LIMIT = 2000
#: Rewards one trial may have.
REWARD_LIMIT = 100

#: Errors with which a trial is still scored.
TIMEOUT = "AgentTimeoutError"
NONZERO_EXIT = "NonZeroAgentExitCodeError"
_SCORABLE = frozenset({TIMEOUT, NONZERO_EXIT})
#: Errors that say: it ran to its end, but left no reward one could use.
REWARD_MISSING = "RewardFileNotFoundError"
REWARD_UNREADABLE = "VerifierOutputParseError"
_UNREWARDED = frozenset({REWARD_MISSING, REWARD_UNREADABLE, "RewardFileEmptyError", "VerifierTimeoutError"})

#: Our names of phases and the names of their times in ``result.json``, in the order they run.
PHASES: Mapping[str, str] = {
    "environment": "environment_setup",
    "agent_setup": "agent_setup",
    "agent": "agent_execution",
    "verifier": "verifier",
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one run of a trial went."""

    started_at: datetime
    finished_at: datetime
    #: None: it has none.
    rewards: Mapping[str, float] | None = None
    #: Empty: no error.
    error_type: str = ""
    error_message: str = ""
    #: Phase (a key of `PHASES`) to its begin and end.
    phases: Mapping[str, tuple[datetime, datetime]] = field(default_factory=dict)
    #: Input tokens, cached ones included; None is unknown, here and below.
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    #: US dollars.
    cost_usd: float | None = None
    #: The executor's own; JSON.
    metadata: Mapping[str, Any] = field(default_factory=dict)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file so that readers see the old content or the new, never a part."""
    write_text(path, json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a text file so that readers see the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(clean(text).encode())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def clean(text: str) -> str:
    """Replace what no UTF-8 file can hold (lone surrogates), and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def trial_id(job_id: str, trial: str) -> str:
    """The identity of a trial: the same however often it is run."""
    return str(uuid5(UUID(job_id) if job_id else NAMESPACE_URL, trial))


def config(evaluation: Evaluation, trial: PlannedTrial, final_dir: str) -> dict[str, Any]:
    """Content of a trial's ``config.json``."""
    labels = trial.labels
    dataset = labels.get("dataset", "")
    agent = {"name": labels.get("agent", "unknown"), "model_name": full_model(labels)}
    return {
        "schema_version": 1,
        "task": {"path": f"{dataset}/{trial.task}" if dataset else trial.task, "source": dataset or None},
        "trial_name": trial.name,
        "trials_dir": str(Path(final_dir).parent),
        "agent": agent,
        "environment": {"import_path": f"aeo.executors.{evaluation.spec.executor}"},
        "job_id": evaluation.plan.header.get("job_id"),
    }


def full_model(labels: Mapping[str, str]) -> str | None:
    """``provider/model`` of the labels; None if there is no model."""
    model, provider = labels.get("model"), labels.get("provider")
    return f"{provider}/{model}" if model and provider else model or None


def begin(trial_dir: Path, evaluation: Evaluation, trial: PlannedTrial, final_dir: str) -> None:
    """Write ``config.json``: the trial shows as running."""
    write_json(trial_dir / "config.json", config(evaluation, trial, final_dir))


def finish(trial_dir: Path, evaluation: Evaluation, trial: PlannedTrial, final_dir: str, ending: Ending) -> None:
    """Write ``trial.log``, ``exception.txt`` if there is an error, and ``result.json``, last."""
    error = f"{ending.error_type}: {ending.error_message}" if ending.error_type else ""
    if error:
        write_text(trial_dir / "exception.txt", error + "\n")
    rewards = ", ".join(f"{name} {value:g}" for name, value in (ending.rewards or {}).items())
    last = " ".join(part for part in (f"rewards {rewards}" if rewards else "no reward", error) if part)
    lines = [f"{begin.isoformat()} {phase}" for phase, (begin, _) in ending.phases.items()]
    write_text(trial_dir / "trial.log", "\n".join([*lines, f"{ending.finished_at.isoformat()} end, {last}"]) + "\n")
    write_json(trial_dir / "result.json", _document(evaluation, trial, final_dir, ending))


def rename(trial_dir: Path, evaluation: Evaluation, trial: PlannedTrial, final_dir: str) -> None:
    """Let the finished folder of another trial of the same task name this one; what happened stays as it is.

    Raises:
        InputError: it is no result.
    """
    document = read_json(trial_dir / "result.json")
    document.update(_named(evaluation, trial, final_dir))
    begin(trial_dir, evaluation, trial, final_dir)
    write_json(trial_dir / "result.json", document)


def _named(evaluation: Evaluation, trial: PlannedTrial, final_dir: str) -> dict[str, Any]:
    """What of a result names the trial and where it is."""
    asked = config(evaluation, trial, final_dir)
    return {
        "id": trial_id(str(evaluation.plan.header.get("job_id") or ""), trial.name),
        "task_name": trial.task,
        "trial_name": trial.name,
        "trial_uri": Path(final_dir).absolute().as_uri(),
        "task_id": {"path": asked["task"]["path"]},
        "source": asked["task"]["source"],
        "config": asked,
    }


def _document(evaluation: Evaluation, trial: PlannedTrial, final_dir: str, ending: Ending) -> dict[str, Any]:
    labels = trial.labels
    model = {"name": labels["model"], "provider": labels.get("provider")} if labels.get("model") else None
    return {
        "schema_version": 1,
        **_named(evaluation, trial, final_dir),
        "task_checksum": "",
        "agent_info": {"name": labels.get("agent", "unknown"), "version": "", "model_info": model},
        "agent_result": _used(ending),
        "verifier_result": {"rewards": dict(ending.rewards)} if ending.rewards is not None else None,
        "exception_info": _exception(ending),
        "started_at": ending.started_at.isoformat(),
        "finished_at": ending.finished_at.isoformat(),
        **{PHASES[phase]: _times(*times) for phase, times in ending.phases.items()},
    }


def _used(ending: Ending) -> dict[str, Any] | None:
    used = {
        "n_input_tokens": ending.input_tokens,
        "n_cache_tokens": ending.cache_tokens,
        "n_output_tokens": ending.output_tokens,
        "cost_usd": ending.cost_usd,
        "metadata": dict(ending.metadata) or None,
    }
    return used if any(value is not None for value in used.values()) else None


def _exception(ending: Ending) -> dict[str, Any] | None:
    if not ending.error_type:
        return None
    return {
        "exception_type": ending.error_type,
        "exception_message": clean(ending.error_message),
        "exception_traceback": "",
        "occurred_at": ending.finished_at.isoformat(),
    }


def _times(begin: datetime, end: datetime) -> dict[str, str]:
    return {"started_at": begin.isoformat(), "finished_at": end.isoformat()}


def summarise(trial: PlannedTrial, trial_dir: Path) -> TrialSummary:
    """Read the folder of a finished trial, trusting nothing in it.

    Raises:
        InputError: there is no readable result, or it is another trial's.
    """
    document = read_json(trial_dir / "result.json")
    expected = {"trial_name": trial.name, "task_name": trial.task, "id": trial.payload.get("id", document.get("id"))}
    if any(document.get(name) != value for name, value in expected.items()):
        raise InputError(f"is of another trial than {trial.name!r}.", field="result.json")
    errors = _errors(document)
    rewards = usable_rewards(part(document, "verifier_result").get("rewards"))
    outcome = _outcome(tuple(kind for kind, _ in errors), rewards)
    error_type, message = errors[0] if errors else ("", "")
    if outcome is Outcome.INVALID and not errors:
        error_type, message = REWARD_UNREADABLE, "There is no reward, or it is no finite number."
    used = [part(document, "agent_result")]
    return TrialSummary(
        trial=trial.name,
        task=trial.task,
        outcome=outcome,
        rewards=rewards if outcome is Outcome.SCORED else {},
        started_at=moment(document, "started_at"),
        finished_at=moment(document, "finished_at"),
        phases=durations([document]),
        input_tokens=count(used, "n_input_tokens"),
        cache_tokens=count(used, "n_cache_tokens"),
        output_tokens=count(used, "n_output_tokens"),
        cost_usd=cost(used),
        error_type=error_type,
        error_message=message,
        error_types=tuple(kind for kind, _ in errors),
        labels=trial.labels,
    )


def read_json(path: Path, *, limit: int = SIZE_LIMIT) -> dict[str, Any]:
    """Read a JSON object from a file of untrusted origin; links and special files are refused.

    Raises:
        InputError: it is missing, no regular file, larger than ``limit`` bytes, not UTF-8, or no JSON object.
    """
    try:
        document = json.loads(read_bytes(path, limit=limit).decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not valid JSON: {clean(str(error))[:200]}.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path.name} is no JSON object.")
    return document


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        InputError: it is missing, a link or special file, unreadable or too large.
    """
    try:
        # O_NONBLOCK: a named pipe must not hold the reader.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {os.strerror(error.errno or 0)}.") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InputError(f"{path.name} is no regular file.")
    with os.fdopen(file, "rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path.name} is larger than {limit} bytes.")
    return content


def usable_rewards(value: Any) -> dict[str, float]:
    """The rewards of a flat mapping of names to finite numbers; empty when it is anything else."""
    if not isinstance(value, dict) or not 0 < len(value) <= REWARD_LIMIT:
        return {}
    rewards = {}
    for name, number in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= 200 or clean(name) != name:
            return {}
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return {}
        try:
            rewards[name] = float(number)
        except OverflowError:
            return {}
        if not math.isfinite(rewards[name]):
            return {}
    return rewards


def _outcome(error_types: tuple[str, ...], rewards: Mapping[str, float]) -> Outcome:
    kinds = set(error_types)
    if CANCELLED in kinds:
        return Outcome.CANCELLED
    if kinds - _SCORABLE - _UNREWARDED:
        return Outcome.INFRA_ERROR
    return Outcome.SCORED if rewards and not kinds & _UNREWARDED else Outcome.INVALID


def _errors(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    error = part(document, "exception_info")
    if not error:
        return []
    kind, message = error.get("exception_type"), error.get("exception_message", "")
    if not isinstance(kind, str) or not kind or not isinstance(message, str):
        raise InputError("is no error with a type and a message.", field="exception_info")
    return [(clean(kind)[:200], clean(message)[:MESSAGE_LIMIT])]


def part(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside an untrusted one; empty when it is missing or null.

    Raises:
        InputError: it is no object.
    """
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("is no JSON object.", field=name)
    return value


def moment(holder: Mapping[str, Any], name: str) -> datetime | None:
    """A time, in UTC; one without a zone is taken as such.

    Raises:
        InputError: it is no time.
    """
    value = holder.get(name)
    if value is None:
        return None
    try:
        # Python 3.10 does not read the Z.
        read = datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise InputError("is no time.", field=name) from None


def durations(holders: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each phase that ended, over a trial and its steps.

    Raises:
        InputError: a time is none.
    """
    phases: dict[str, float] = {}
    for phase, name in PHASES.items():
        for holder in holders:
            times = part(holder, name)
            begin, end = moment(times, "started_at"), moment(times, "finished_at")
            if begin and end:
                phases[phase] = phases.get(phase, 0.0) + max(0.0, (end - begin).total_seconds())
    return phases


def count(holders: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The sum of a count; None when nobody has it.

    Raises:
        InputError: it is no count.
    """
    values = [holder[name] for holder in holders if holder.get(name) is not None]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
            raise InputError("is no count.", field=name)
    return sum(values) if values else None


def cost(holders: Sequence[Mapping[str, Any]]) -> float | None:
    """The sum of ``cost_usd``; None when nobody has it.

    Raises:
        InputError: it is no amount.
    """
    values = [holder["cost_usd"] for holder in holders if holder.get("cost_usd") is not None]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**53:
            raise InputError("is no amount.", field="cost_usd")
    return float(sum(values)) if values else None
