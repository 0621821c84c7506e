"""What ``harbor run`` would run: its own flags, resolved by Harbor itself into one configuration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from aeo.core.errors import AeoError, ExecutorFailed, InputError, Problem
from aeo.executors.harbor.python import harbor_python, plugin_path

#: Flags that act outside the configuration, so that they would be lost silently; and what to do instead.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("--launch", "--server", "--watch"), "Harbor's own remote running is another way to run this job."),
    **dict.fromkeys(
        ("--upload", "--public", "--private", "--share", "--share-org", "--share-user", "--org"),
        "Upload the finished job folder with `harbor upload`.",
    ),
    **dict.fromkeys(("--plugin", "--pk", "--plugin-kwarg"), "Job plugins act on one machine's run; leave them out."),
    "--diff": "Compare against the finished job folder with `harbor run --diff`.",
    **dict.fromkeys(
        ("--export-traces", "--export-push", "--export-sharegpt", "--export-repo", "--export-episodes"),
        "Export from the finished job folder with `harbor traces export`.",
    ),
}
#: Flags that mean less here, and why.
NOTED: Mapping[str, str] = {
    "--jobs-dir": "the controller keeps jobs in its own folder; see the job folder at the end.",
    "--n-concurrent": "how many trials run at once is set by the workers' slots and --per-worker-concurrency.",
}
_SHORT = {"-o": "--jobs-dir", "-n": "--n-concurrent"}
#: Flags with which Harbor itself answers and runs nothing.
ANSWERED = ("--print-config", "--dry-run")

# As Harbor's own script does it; its environment may have been made without scripts.
_RUN = "import sys; sys.argv[0] = 'harbor'; from harbor.cli.main import app; sys.exit(app())"
_MASK = "****"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What Harbor said."""

    code: int
    out: str
    err: str


def ask(args: Sequence[str], *, also: Sequence[str] = ()) -> Answer:
    """Call ``harbor run`` with these flags in Harbor's own environment.

    Raises:
        Unavailable: there is no Harbor here and none could be made.
    """
    python = harbor_python(create=True, progress=lambda text: click.echo(text, err=True))
    paths = [str(plugin_path()), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # The folder one stands in must not shadow Harbor's modules.
        "PYTHONSAFEPATH": "1",
        "COLUMNS": str(shutil.get_terminal_size((120, 24)).columns),
        "HARBOR_TELEMETRY": "0",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(python.path), "-c", _RUN, "run", *also, *args]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutorFailed(f"Harbor could not be asked: {type(error).__name__}.") from None
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return Answer(code=done.returncode, out=out, err=err)


def resolve(args: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Resolve the flags of ``harbor run`` into the configuration it would run, and what Harbor remarked.

    Raises:
        InputError: Harbor refuses the flags, a flag cannot be carried over, or a secret stands in them literally.
        Unavailable: there is no Harbor here and none could be made.
    """
    _check_flags(args)
    answer = ask(args, also=("--print-config",))
    if answer.code != 0:
        raise InputError(_message(answer) or f"Harbor refused the flags (exit code {answer.code}).")
    start = 0 if answer.out.startswith("{") else answer.out.find("\n{") + 1
    try:
        config = json.loads(answer.out[start:])
    except ValueError:
        raise _misunderstood() from None
    if not isinstance(config, dict):
        raise _misunderstood()
    masked = tuple(_masked(config, ""))
    if masked:
        raise InputError(problems=masked)
    env_file = _given(args, "--env-file")
    if env_file:
        # Read on the controller, as all that a configuration names.
        config["env_file"] = str(Path(env_file).expanduser().absolute())
    return config, "\n".join(filter(None, (answer.out[:start].strip(), answer.err.strip())))


def notes(args: Sequence[str]) -> list[str]:
    """Say which flags mean less here than with ``harbor run``."""
    used = {_SHORT.get(flag, flag) for flag in _flags(args)}
    return [f"{flag}: {text}" for flag, text in NOTED.items() if flag in used]


def answered(args: Sequence[str]) -> bool:
    """Whether Harbor only prints or checks with these flags."""
    return any(flag in ANSWERED for flag in _flags(args))


def _flags(args: Sequence[str]) -> list[str]:
    flags = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
    return flags + [arg[:2] for arg in args if arg[:1] == "-" and arg[:2] in _SHORT]


def _given(args: Sequence[str], flag: str) -> str:
    """The value of a flag, the last one where it stands twice; "" if it is not there."""
    value = ""
    for index, arg in enumerate(args):
        if arg.startswith(f"{flag}="):
            value = arg.partition("=")[2]
        elif arg == flag:
            value = "".join(args[index + 1 : index + 2])
    return value


def _check_flags(args: Sequence[str]) -> None:
    problems = tuple(
        Problem(field=flag, message="is not for `aeo run`.", fix=REFUSED[flag])
        for flag in dict.fromkeys(_flags(args))
        if flag in REFUSED
    )
    if problems:
        raise InputError(problems=problems)


def _masked(value: Any, path: str) -> Iterator[Problem]:
    """Find secrets that Harbor masked when it printed the configuration: they would run as asterisks."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _masked(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            place = f"{path}.{key}" if path else str(key)
            if isinstance(item, str) and _MASK in item and path.rpartition(".")[2] == "env":
                yield Problem(
                    field=place,
                    message="is a secret given literally.",
                    fix=f"Give '{key}=${{{key}}}' and set {key} in the workers' environment.",
                )
            else:
                yield from _masked(item, place)


def _message(answer: Answer) -> str:
    """Harbor's own words, less the frames of a traceback, which help nobody who gave a wrong flag."""
    lines = [line.rstrip() for line in f"{answer.err}\n{answer.out}".splitlines() if line.strip()]
    if any("Traceback" in line for line in lines):
        lines = [line for line in lines if line[:1] not in "╭│╰"]
    return "\n".join(lines)


def _misunderstood() -> AeoError:
    return ExecutorFailed("Harbor's --print-config printed no JSON object; is it the version AEO was made for?")
