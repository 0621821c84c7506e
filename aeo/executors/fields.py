"""Reading a configuration from outside: each fault becomes one problem that names its place."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aeo.core.errors import InputError, Problem
from aeo.executors import SubmittedFile, source
from aeo.executors.secrets import is_secret

#: A reference to a variable of the worker.
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:-")


@dataclass(frozen=True)
class Report:
    """The faults found so far, and the text they are in."""

    file: SubmittedFile
    problems: list[Problem] = field(default_factory=list)

    def add(self, path: tuple[str | int, ...], message: str, fix: str = "") -> None:
        """Note a fault; ``path`` are the keys and indices that lead to it."""
        place = source.place(self.file.name, self.file.text, path)
        self.problems.append(Problem(message=message, field=place, fix=fix))

    def within(self, file: SubmittedFile) -> Report:
        """For faults in another file, noted with these."""
        return Report(file, self.problems)

    def refuse(self) -> None:
        """Raise one `InputError` for all faults, if there are any."""
        if self.problems:
            raise InputError(problems=tuple(self.problems))


class Fields:
    """One mapping being read; its faults go to ``report``."""

    def __init__(self, data: Any, path: tuple[str | int, ...], report: Report, known: tuple[str, ...]):
        self.path = path
        self.report = report
        self._data: Mapping[Any, Any] = data if isinstance(data, dict) else {}
        all_known = f"Known keys: {', '.join(known)}."
        if not isinstance(data, dict):
            self.report.add(path, "must be a mapping.", all_known)
        for key in self._data:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                self.problem(str(key), "unknown key.", f"Did you mean {close[0]!r}?" if close else all_known)

    def problem(self, key: str, message: str, fix: str = "", *, below: str | int | None = None) -> None:
        """Note a fault of ``key``, or of what stands ``below`` it."""
        self.report.add((*self.path, key, *(() if below is None else (below,))), message, fix)

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it is; ``default`` when missing or null."""
        value = self._data.get(key)
        return default if value is None else value

    def text(self, key: str, default: str = "") -> str:
        """A text without NUL."""
        value = self.raw(key, default)
        if isinstance(value, str) and "\0" not in value:
            return value
        self.problem(key, "must be a text.")
        return default

    def number(self, key: str, default: float, *, least: float = 0, most: float = 1e9) -> float:
        """A finite number from ``least`` to ``most``."""
        value = self.raw(key, default)
        if is_number(value) and least <= value <= most:
            return float(value)
        self.problem(key, f"must be a number from {least:g} to {most:g}.")
        return default

    def whole(self, key: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self.raw(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.problem(key, f"must be a whole number from {least} to {most}.")
        return default

    def texts(self, key: str) -> dict[str, str]:
        """A mapping of names to texts; numbers are taken as they are written, but not yes/no values."""
        value = self.raw(key, {})
        if not isinstance(value, dict):
            self.problem(key, "must be a mapping of names to texts.")
            return {}
        read = {}
        for name, item in value.items():
            if (
                not isinstance(name, str)
                or not name
                or isinstance(item, bool)
                or not isinstance(item, (str, int, float))
            ):
                self.problem(key, "must be a text.", "Put it in quotes.", below=name)
            else:
                read[name] = str(item)
        return read

    def environment(self, key: str) -> dict[str, str]:
        """Environment variables; a literal secret among them is a fault."""
        read = self.texts(key)
        for name, item in read.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in item:
                self.problem(key, "is no environment variable.", below=name)
            elif name.startswith("AEO_"):
                self.problem(key, "names that start with AEO_ are set by the platform.", below=name)
            elif is_secret(name, item):
                self.problem(key, "holds a secret in plain text.", secret_fix(name), below=name)
            elif _DEFAULT.search(item):
                self.problem(key, "has a reference with a default, which would stay as it is.", below=name)
        return read


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def secret_fix(name: str) -> str:
    """What to do about a secret written out."""
    return f"Write ${{{name}}} and set it once: `aeo secrets set {name}`, or in each worker's environment."
