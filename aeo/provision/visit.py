"""One visit to a machine: what its steps share."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from aeo import __version__
from aeo.core.errors import InputError
from aeo.provision import record, wheels
from aeo.provision.facts import Facts
from aeo.provision.host import Answer, Host, quoted
from aeo.provision.record import Machine
from aeo.provision.steps import StepFailed
from aeo.provision.wheels import Wheel
from aeo.site import Site

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ = (
    "import os, sys\nfrom aeo.provision.visit import settings_of\n"
    "for path in sys.argv[1:{count}+1]:\n"
    " if os.access(path, os.R_OK): os.environ.update(settings_of(open(path).read()))\n"
    "del sys.argv[1:{count}+1]\n"
)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~-]*")


@dataclass(kw_only=True)
class Visit:
    """A machine that is being worked on. Leaving ``stack`` closes the connection."""

    site: Site
    machine: Machine
    stack: ExitStack
    #: More settings of the worker, some of them secrets.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Nothing may be changed, here or there.
    dry_run: bool = False
    #: The worker's boot before its service was started anew; "" if there was none.
    boot: str = ""
    _host: Host | None = None
    _facts: Facts | None = None
    _wheel: Wheel | None = None

    def reached(self, host: Host) -> None:
        """From here on steps may run something there."""
        self._host = host

    def known(self, facts: Facts) -> None:
        """From here on steps know what it is."""
        self._facts = facts

    @property
    def facts(self) -> Facts:
        """What it is."""
        assert self._facts is not None  # noqa: S101  the step that asks comes first
        return self._facts

    @property
    def host(self) -> Host:
        """The connection."""
        assert self._host is not None  # noqa: S101  the step that connects comes first
        return self._host

    @property
    def base(self) -> str:
        """Where everything of ours lies there."""
        return self.machine.base or self.facts.base

    @property
    def service(self) -> str:
        """What keeps its worker running."""
        return self.machine.service or self.facts.service

    @property
    def wheel(self) -> Wheel:
        """AEO, as it runs here."""
        if self._wheel is None:
            folder = self.site.shared.wheels
            if self.dry_run:
                folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="aeo-")))
            self._wheel = wheels.of_aeo(folder)
        return self._wheel

    @property
    def mark(self) -> str:
        """Name of the folder of this very AEO."""
        return f"{__version__}-{self.wheel.mark}"

    @property
    def path(self) -> str:
        """PATH of the worker."""
        return f"{self.base}/bin:{self.base}/current/bin:{self.facts.path}"

    def remember(self, **changes: object) -> None:
        """Keep what became known of it."""
        self.machine = replace(self.machine, **changes)  # type: ignore[arg-type]
        if not self.dry_run:
            record.keep(self.site.shared, self.machine)

    def sh(self, script: str, why: str, *, fix: str = "", seconds: float = 60.0) -> str:
        """Run a script there; returns what it printed.

        Raises:
            StepFailed: it failed; ``why`` says what could not be done.
        """
        answer = self.host.run(script, seconds=seconds)
        check(answer, why, fix=fix)
        return answer.out.strip()

    def asks(self, script: str) -> str:
        """What a script prints there; "" when it fails."""
        answer = self.host.run(script)
        return "" if answer.code else answer.out.strip()

    @property
    def settings_files(self) -> tuple[str, str]:
        """Where the person's own settings lie there, and the worker's, which win."""
        own = f"{self.facts.home}/.config/aeo"
        folder = "/etc/aeo" if self.service == "system" else own
        return f"{folder}/env", f"{folder}/worker-{self.machine.id}.env"

    def with_settings(self, program: str, *arguments: str) -> str:
        """A script that runs a Python program with the worker's settings, which no shell must read as its own."""
        files = self.settings_files
        text = f"{_READ.format(count=len(files))}{program}"
        return f"cd && {quoted(self.base)}/current/bin/python -c {quoted(text)} {quoted(*files, *arguments)}"


def check(answer: Answer, why: str, *, fix: str = "") -> None:
    """See that a command went well.

    Raises:
        StepFailed: it did not.
    """
    if answer.code:
        raise StepFailed(f"{why} (exit code {answer.code})", lines=answer.last(), fix=fix)


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings as systemd and `aeo background` read them.

    Raises:
        InputError: a name is none, or a value has more than one line.
    """
    lines = []
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name of a variable.", field="--set")
        if not value.isprintable():
            raise InputError(f"the value of {name} has letters that no line can hold.", field="--set")
        safe = value if _PLAIN.fullmatch(value) else '"' + re.sub(r'([\\"$`])', r"\\\1", value) + '"'
        lines.append(f"{name}={safe}")
    return "\n".join(lines) + "\n"


def settings_of(text: str) -> dict[str, str]:
    """Read such settings; what is no setting is passed over."""
    found = {}
    for line in text.splitlines():
        name, is_one, value = line.strip().partition("=")
        if is_one and _NAME.fullmatch(name):
            quote = value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1
            inner = value[1:-1] if quote else value
            found[name] = re.sub(r"\\(.)", r"\1", inner) if value[:1] == '"' else inner
    return found
