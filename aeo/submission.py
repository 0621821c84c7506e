"""What a person hands in, read into a spec.

A file is either an executor's plain configuration, or the same with our own header beside it. It has our header when it
has the key ``executor``; the header's keys are `HEADER`, everything else is the executor's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aeo.core.errors import InputError, Problem
from aeo.core.model import MOST_FACTOR, MOST_WHOLE, Spec, StopRule
from aeo.core.names import check_name, check_variable
from aeo.executors import PLAIN, SubmittedFile, document, secrets

#: Keys of our own header, which are also the options of ``aeo submit``.
HEADER = (
    "executor",
    "name",
    "workers",
    "per_worker_concurrency",
    "priority",
    "agent_timeout_multiplier",
    "max_requeues",
    "secrets",
    "stop_when",
)
#: Under our own header agents get three times their time-out, as people here are used to.
AGENT_TIMEOUT_MULTIPLIER = 3.0


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request to evaluate something."""

    #: The file's text, YAML or JSON; or `config`, the same already parsed.
    text: str = ""
    config: Mapping[str, Any] | None = None
    #: As the user named it; for messages only.
    file_name: str = ""
    #: Absolute folder that relative paths in the configuration start from.
    working_dir: str = ""
    #: Header keys given as options; they win over the file's.
    options: Mapping[str, Any] = field(default_factory=dict)


def read(submission: Submission) -> tuple[Spec, SubmittedFile]:
    """Read a submission; the spec's name is empty when nobody gave one.

    Raises:
        InputError: not YAML or JSON, or header keys have no valid value (one problem each).
    """
    spec, file, problems = look(submission)
    if problems:
        raise InputError(problems=problems)
    return spec, file


def look(submission: Submission) -> tuple[Spec, SubmittedFile, tuple[Problem, ...]]:
    """Read a submission as far as it can be read: a header key without a valid value is a problem, and left out.

    Raises:
        InputError: not YAML or JSON, or it is not known for which executor.
    """
    config = _config(submission)
    document.refuse({"options": dict(submission.options)})
    ours = "executor" in config
    header = {key: config.pop(key) for key in HEADER if ours and key in config}
    for key, value in submission.options.items():
        if key not in HEADER:
            raise InputError("unknown option.", field=f"options.{key}", fix=_meant(key))
        if value is not None:
            header[key] = value
    if ours:
        header.setdefault("agent_timeout_multiplier", AGENT_TIMEOUT_MULTIPLIER)
    if header.setdefault("executor", PLAIN) is None:
        raise InputError("must be a text.", field="executor")
    values: dict[str, Any] = {"executor": _text("executor", header.pop("executor")), "name": ""}
    problems: list[Problem] = []
    for key, value in header.items():
        if value is not None or key in _NULLABLE:
            try:
                values[key] = _CHECKS[key](key, value)
            except InputError as error:
                problems += error.problems
    file = SubmittedFile(name=submission.file_name, text=submission.text, folder=submission.working_dir)
    return Spec(**values, config=config), file, tuple(problems)


def _config(submission: Submission) -> dict[str, Any]:
    if submission.config is not None:
        document.refuse(submission.config)
        return dict(submission.config)
    place = submission.file_name or "configuration"
    read = document.read(submission.text, place)
    if read is None:
        raise InputError("is empty.", field=place, fix="Hand in a job configuration in YAML or JSON.")
    if not isinstance(read, dict):
        raise InputError("is no mapping of keys to values.", field=place)
    return read


def _meant(key: str) -> str:
    close = difflib.get_close_matches(key, HEADER, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(HEADER)}."


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError("must be a text.", field=key)
    if secrets.has_key(value):
        raise InputError("looks like a secret.", field=key, fix="Choose a name that may be seen by everybody.")
    return check_name(value, "name" if key == "name" else f"{key} name", field=key)


def _workers(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError("must be a list of worker ids.", field=key)
    if len(set(value)) < len(value):
        raise InputError("names a worker twice.", field=key)
    return tuple(check_name(item, "worker id", field=key) for item in value)


def _secrets(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError("must be a list of names of secrets.", field=key, fix="Such as [OPENAI_API_KEY]; no values.")
    return tuple(dict.fromkeys(check_variable(item, field=key) for item in value))


def _concurrency(key: str, value: Any) -> int | None:
    if value == "all" or value is None:
        return None
    return _whole(1, ", or 'all'")(key, value)


def _whole(least: int, otherwise: str = "") -> Callable[[str, Any], int]:
    def check(key: str, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_WHOLE:
            raise InputError(f"must be a whole number from {least} to {MOST_WHOLE}{otherwise}.", field=key)
        return value

    return check


def _multiplier(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST_FACTOR:
        raise InputError(f"must be a number above 0 and below {MOST_FACTOR}.", field=key)
    return float(value)


def _rule(key: str, value: Any) -> StopRule:
    """``{interval: 0.05}`` or ``{compare: [a, b]}``, either with ``min_trials``."""
    if not isinstance(value, dict):
        raise InputError("must be a mapping.", field=key, fix="Such as {interval: 0.05} or {compare: [a, b]}.")
    given = {name: item for name, item in value.items() if item not in (None, [], "")}
    if given.pop("decided", True) is not True or set(given) - {"interval", "compare", "min_trials"}:
        raise InputError("has a key that is not known.", field=key, fix="Known: interval, compare, min_trials.")
    if ("interval" in given) == ("compare" in given):
        raise InputError("must have one of interval and compare.", field=key)
    least = _whole(2)(f"{key}.min_trials", given.get("min_trials", 30))
    if "interval" in given:
        return StopRule(interval=_part(f"{key}.interval", given["interval"]), min_trials=least)
    sides = given["compare"]
    if isinstance(sides, str):
        sides = [part.strip() for part in sides.split(",")]
    named = isinstance(sides, list) and all(isinstance(side, str) and side for side in sides)
    if not named or len(sides) != 2 or sides[0] == sides[1]:
        raise InputError("must be two agents or models.", field=f"{key}.compare")
    return StopRule(compare=tuple(sides), min_trials=least)


def _part(key: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_WHOLE:
        raise InputError(f"must be a number above 0 and at most {MOST_WHOLE}.", field=key)
    return float(value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "executor": _text,
    "name": _text,
    "workers": _workers,
    "per_worker_concurrency": _concurrency,
    "priority": _whole(-MOST_WHOLE),
    "agent_timeout_multiplier": _multiplier,
    "max_requeues": _whole(0),
    "secrets": _secrets,
    "stop_when": _rule,
}
#: Keys for which null is a value of its own.
_NULLABLE = ("per_worker_concurrency", "agent_timeout_multiplier")
