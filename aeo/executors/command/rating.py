"""From what a command left to a reward."""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aeo.core.errors import InputError
from aeo.executors import result
from aeo.executors.command.tasks import Expect, Task
from aeo.executors.process import Exit

#: The command does not exist on this worker.
NOT_FOUND = "CommandNotFoundError"
#: Something outside ended the command: the kernel for want of memory, a person, a machine going down.
KILLED = "CommandKilledError"
#: What the shell exits with when it finds no such command.
_SHELL_NOT_FOUND = 127
#: Bytes of a reward file that are read.
_REWARD_LIMIT = 64 * 1024
#: Seconds a regular expression gets; some never end.
_SEARCH_SECONDS = 5.0
# In a process of its own: a search cannot be interrupted, and would hold up every thread of the worker.
_SEARCH = """
import re, sys
text = sys.stdin.buffer.read().decode(errors="replace")
sys.exit(0 if re.search(sys.argv[1], text, re.MULTILINE) else 1)
"""


@dataclass(frozen=True, kw_only=True)
class Rating:
    """What a run is worth."""

    rewards: Mapping[str, float] | None = None
    error_type: str = ""
    error_message: str = ""
    #: For a person: what was compared.
    notes: str = ""


def rate(task: Task, end: Exit, cwd: Path, output: Path, env: Mapping[str, str]) -> Rating:
    """Rate a command that was not stopped."""
    if end.timed_out:
        return _too_late(task, cwd)
    if end.code == -signal.SIGKILL:
        # No program does this to itself to end, and what it left is half-done: no result, and none of its making.
        message = "The command was killed from outside (SIGKILL), perhaps for want of memory."
        return Rating(error_type=KILLED, error_message=message, notes=message)
    if _not_found(task, end, cwd, env):
        message = f"The shell on this worker finds no {_first_word(task)!r}."
        return Rating(error_type=NOT_FOUND, error_message=message, notes=message)
    if task.reward_file:
        return _from_file(task.reward_file, cwd)
    return _compare(task.expect, end, output)


def _too_late(task: Task, cwd: Path) -> Rating:
    # What the task rated by itself until then stands.
    rated = _from_file(task.reward_file, cwd) if task.reward_file else Rating()
    message = "The command did not end in time."
    return Rating(
        rewards=rated.rewards or {"reward": 0.0}, error_type=result.TIMEOUT, error_message=message, notes=message
    )


def _not_found(task: Task, end: Exit, cwd: Path, env: Mapping[str, str]) -> bool:
    """Whether the shell did not even find the first program. One that is missing later is the task's affair."""
    if not task.shell or end.code != _SHELL_NOT_FOUND or task.expect.exit == _SHELL_NOT_FOUND:
        return False
    word = _first_word(task)
    ask = ["sh", "-c", 'command -v -- "$1" >/dev/null', "sh", word]
    return bool(word) and subprocess.run(ask, cwd=cwd, env=dict(env), check=False, timeout=10).returncode != 0


def _first_word(task: Task) -> str:
    try:
        words = shlex.split(task.argv[-1], comments=True)
    except ValueError:
        return ""
    plain = (word for word in words if "=" not in word)
    return next(plain, "").rstrip(";")


def _from_file(name: str, cwd: Path) -> Rating:
    path = cwd / name
    try:
        if not path.exists():
            raise FileNotFoundError
        if not path.resolve().is_relative_to(cwd.resolve()):
            raise InputError(f"{name} leads out of the folder of the trial.")
        content = result.read_bytes(path, limit=_REWARD_LIMIT).decode()
        rewards = result.usable_rewards(json.loads(content) if path.suffix == ".json" else {"reward": float(content)})
    except FileNotFoundError:
        message = f"The command left no {name}."
        return Rating(error_type=result.REWARD_MISSING, error_message=message, notes=message)
    except (InputError, ValueError, RecursionError, OSError) as error:
        message = f"{name} cannot be used: {result.clean(str(error))[:200]}"
        return Rating(error_type=result.REWARD_UNREADABLE, error_message=message, notes=message)
    if not rewards:
        message = f"{name} must hold finite numbers under flat names."
        return Rating(error_type=result.REWARD_UNREADABLE, error_message=message, notes=message)
    return Rating(rewards=rewards, notes=f"{name}: {content.strip()[:2000]}")


def _compare(expect: Expect, end: Exit, output: Path) -> Rating:
    checks = [(f"exit code {_shown(end.code)}, expected {expect.exit}", end.code == expect.exit)]
    if expect.output is not None:
        text = output.read_bytes().decode(errors="replace").strip()
        checks.append((f"output {text[:500]!r}, expected {expect.output[:500]!r}", text == expect.output))
    if expect.output_regex is not None:
        found = _search(expect.output_regex, output)
        if found is None:
            message = f"The regular expression {expect.output_regex!r} did not end within {_SEARCH_SECONDS:g} s."
            return Rating(error_type="VerifierTimeoutError", error_message=message, notes=message)
        checks.append((f"output is searched for {expect.output_regex!r}", found))
    notes = "\n".join(f"{'ok' if good else 'FAILED'}: {text}" for text, good in checks)
    return Rating(rewards={"reward": math.prod(float(good) for _, good in checks)}, notes=notes)


def _search(pattern: str, output: Path) -> bool | None:
    """Whether the pattern is found; None when the search took too long."""
    with output.open("rb") as file:
        try:
            search = [sys.executable, "-I", "-S", "-c", _SEARCH, pattern]
            return subprocess.run(search, stdin=file, timeout=_SEARCH_SECONDS, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return None


def _shown(code: int) -> str:
    return str(code) if code >= 0 else f"none (ended by signal {-code})"
