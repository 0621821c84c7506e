"""The configuration of the ``command`` executor, read into tasks.

::

    attempts: 2                       # trials per task (1)
    agent: shell                      # labels of the whole evaluation
    model: provider/name
    dataset: my-tasks
    timeout_sec: 60                   # for tasks that have none of their own (600)
    env: {LANG: C.UTF-8}              # for every task
    tasks:                            # or tasks_file: FILE.yaml, FILE.jsonl (one task a line)
      - name: count
        command: wc -l < input.txt    # run by sh -c; a list is run as it is
        timeout_sec: 5
        env: {API_KEY: "${API_KEY}"}  # taken from the worker's environment when the task runs
        cwd: sub/folder               # below the trial's own empty folder, or an absolute path of the worker
        expect: {exit: 0, output: "3", output_regex: "^3$"}   # all that are given must hold
        reward_file: reward.json      # or the task rates itself: a flat object of numbers, or .txt with one number
        cpus: 1
        memory_mb: 256
        labels: {category: text, difficulty: easy}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from aeo.core.errors import InputError
from aeo.core.names import check_name
from aeo.executors import SubmittedFile, document
from aeo.executors.fields import Fields, Report
from aeo.executors.result import read_bytes
from aeo.executors.secrets import has_key

_KEYS = ("tasks", "tasks_file", "attempts", "agent", "model", "dataset", "timeout_sec", "env")
_TASK_KEYS = (
    "name",
    "command",
    "timeout_sec",
    "env",
    "cwd",
    "expect",
    "reward_file",
    "cpus",
    "memory_mb",
    "labels",
)
_EXPECT_KEYS = ("exit", "output", "output_regex")
#: Labels the evaluation sets.
_RESERVED = ("agent", "model", "provider", "dataset")
#: Largest ``tasks_file``, bytes.
_FILE_LIMIT = 64 * 1024 * 1024
TRIAL_LIMIT = 200_000


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What makes a task pass; what is None does not matter."""

    exit: int = 0
    #: The standard output, without white space at both ends.
    output: str | None = None
    #: Found somewhere in the standard output, line by line.
    output_regex: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One command and how it is rated."""

    name: str
    argv: tuple[str, ...]
    #: The command was a text, run by ``sh -c``.
    shell: bool = False
    #: Seconds, before any factor of the evaluation.
    timeout_seconds: float
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    expect: Expect = Expect()
    #: Relative to where the command runs; empty: the expectation decides.
    reward_file: str = ""
    cpus: float = 0.0
    memory_mb: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """A configuration, read."""

    tasks: tuple[Task, ...]
    attempts: int
    #: ``agent``, ``dataset`` and, if there is one, ``model`` and ``provider``.
    labels: Mapping[str, str]


#: Where a task is written, whose text that is a path in, and the task.
_Entry = tuple[tuple["str | int", ...], Report, Any]


def read(config: Mapping[str, Any], file: SubmittedFile) -> TaskSet:
    """Read a configuration.

    Raises:
        InputError: with one problem per fault.
    """
    report = Report(file)
    fields = Fields(dict(config), (), report, _KEYS)
    shared = Task(
        name="", argv=(), timeout_seconds=fields.number("timeout_sec", 600.0, least=0.01), env=fields.environment("env")
    )
    attempts = fields.whole("attempts", 1, least=1, most=1000)
    labels = _labels(fields)
    read_tasks = [(Fields(raw, path, where, _TASK_KEYS), raw) for path, where, raw in _entries(fields, file)]
    tasks = tuple(_task(inner, shared) for inner, raw in read_tasks if isinstance(raw, dict))
    _check_names(tasks, fields)
    if len(tasks) * attempts > TRIAL_LIMIT:
        fields.problem("attempts", f"make {len(tasks) * attempts} trials; at most {TRIAL_LIMIT} are possible.")
    report.refuse()
    return TaskSet(tasks=tasks, attempts=attempts, labels=labels)


def _labels(fields: Fields) -> dict[str, str]:
    labels = {"agent": fields.text("agent", "command"), "dataset": fields.text("dataset", "command")}
    for key, value in labels.items():
        # Readers of job files take the group's name apart at double underscores.
        if "__" in value or not re.fullmatch(r"[A-Za-z0-9][\w.+@ -]{0,99}", value, re.ASCII):
            fields.problem(key, "must be letters, digits and . _ + @ - without double underscores.")
    provider, _, model = fields.text("model").rpartition("/") if "model" in fields else ("", "", "")
    if "model" in fields and not re.fullmatch(r"[^\s/]{1,100}", model):
        fields.problem("model", "must be a name, or provider/name.")
    return {**labels, **({"model": model} if model else {}), **({"provider": provider} if provider else {})}


def _entries(fields: Fields, file: SubmittedFile) -> list[_Entry]:
    if ("tasks" in fields) == ("tasks_file" in fields):
        fields.problem("tasks", "give either tasks or tasks_file.")
        return []
    if "tasks" in fields:
        return _listed(fields, "tasks", fields.raw("tasks"), ("tasks",), fields.report)
    name = fields.text("tasks_file")
    path = Path(file.folder or "/", name)
    if not Path(name).is_absolute() and not file.folder:
        fields.problem("tasks_file", "must be an absolute path here.")
        return []
    try:
        text = read_bytes(path.resolve(), limit=_FILE_LIMIT).decode()
        return _jsonl(fields, name, text) if path.suffix == ".jsonl" else _yaml(fields, name, text)
    except UnicodeDecodeError:
        fields.problem("tasks_file", f"{name} is not UTF-8.")
    except InputError as error:
        fields.problem("tasks_file", str(error))
    return []


def _listed(fields: Fields, key: str, value: Any, path: tuple[str, ...], report: Report) -> list[_Entry]:
    if not isinstance(value, list) or not value:
        fields.problem(key, "must be a list of at least one task.")
        return []
    return [((*path, index), report, raw) for index, raw in enumerate(value)]


def _yaml(fields: Fields, name: str, text: str) -> list[_Entry]:
    report = fields.report.within(SubmittedFile(name=name, text=text))
    try:
        read = document.read(text, name)
    except InputError as error:
        report.problems.extend(error.problems)
        return []
    if isinstance(read, dict) and list(read) == ["tasks"]:
        return _listed(fields, "tasks_file", read["tasks"], ("tasks",), report)
    return _listed(fields, "tasks_file", read, (), report)


def _jsonl(fields: Fields, name: str, text: str) -> list[_Entry]:
    report = fields.report.within(SubmittedFile())
    entries: list[_Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                read = json.loads(line)
                document.refuse(read)
                entries.append(((f"{name}:{number}",), report, read))
            except (ValueError, RecursionError, InputError) as error:
                raise InputError(f"{name}, line {number}, is not valid JSON: {error}") from None
    if not entries:
        raise InputError(f"{name} has no task.")
    return entries


def _task(fields: Fields, shared: Task) -> Task:
    argv, shell = _command(fields)
    return Task(
        name=_name(fields),
        argv=argv,
        shell=shell,
        timeout_seconds=fields.number("timeout_sec", shared.timeout_seconds, least=0.01),
        env={**shared.env, **fields.environment("env")},
        cwd=_relative(fields, "cwd", absolute=True),
        expect=_expect(fields),
        reward_file=_relative(fields, "reward_file", absolute=False),
        cpus=fields.number("cpus", 0.0),
        memory_mb=fields.whole("memory_mb", 0),
        labels=_own_labels(fields),
    )


def _name(fields: Fields) -> str:
    name = fields.text("name")
    try:
        return check_name(name, "task name")
    except InputError as error:
        fields.problem("name", error.problems[0].message, error.problems[0].fix)
        return ""


def _command(fields: Fields) -> tuple[tuple[str, ...], bool]:
    raw = fields.raw("command")
    parts = [raw] if isinstance(raw, str) else raw
    if (
        not isinstance(parts, list)
        or not parts
        or not all(isinstance(part, str) and "\0" not in part for part in parts)
    ):
        fields.problem("command", "must be a text for the shell, or a list of texts.")
        return (), False
    if not parts[0].strip():
        fields.problem("command", "is empty.")
    if any(map(has_key, parts)):
        fields.problem(
            "command",
            "holds a secret in plain text.",
            'Pass it by env, as NAME: "${NAME}", and use $NAME in the command.',
        )
    return (("sh", "-c", raw), True) if isinstance(raw, str) else (tuple(parts), False)


def _relative(fields: Fields, key: str, *, absolute: bool) -> str:
    text = fields.text(key)
    path = PurePosixPath(text)
    if ".." in path.parts or (path.is_absolute() and not absolute):
        fields.problem(key, "must lie below the folder of the trial, without '..'.")
    if key == "reward_file" and text and path.suffix not in (".json", ".txt"):
        fields.problem(key, "must end in .json (a flat object of numbers) or .txt (one number).")
    return text


def _expect(fields: Fields) -> Expect:
    if "expect" not in fields:
        return Expect()
    if "reward_file" in fields:
        fields.problem("expect", "cannot stand beside reward_file.", "One of them rates the task.")
    inner = Fields(fields.raw("expect"), (*fields.path, "expect"), fields.report, _EXPECT_KEYS)
    pattern = inner.text("output_regex") if "output_regex" in inner else None
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        inner.problem("output_regex", f"is no regular expression: {error}.")
    return Expect(
        exit=inner.whole("exit", 0, most=255),
        output=inner.text("output").strip() if "output" in inner else None,
        output_regex=pattern,
    )


def _own_labels(fields: Fields) -> dict[str, str]:
    labels = fields.texts("labels")
    for name in set(labels) & set(_RESERVED):
        fields.problem("labels", "is set for the whole evaluation.", f"Use the key {name!r} beside tasks.", below=name)
    return labels


def _check_names(tasks: tuple[Task, ...], fields: Fields) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.name and task.name in seen:
            fields.problem("tasks" if "tasks" in fields else "tasks_file", f"two tasks are named {task.name!r}.")
        seen.add(task.name)
