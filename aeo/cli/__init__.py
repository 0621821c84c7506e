"""The ``aeo`` command. Each command lives in a module of its own, imported only when it is used.

Exit codes: 0 done; 1 a part is away, or the awaited evaluation failed; 2 the input is wrong; 3 the awaited evaluation
was cancelled; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from aeo.core.errors import AeoError, InputError, Refused

#: Command name to where it is and what `aeo --help` says of it, in the order shown.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("aeo.cli.processes:demo", "Run a small sample evaluation on this machine, start to end."),
    "up": ("aeo.cli.processes:up", "Run everything on this machine: server, controller, workers."),
    "controller": ("aeo.cli.processes:controller", "Run the controller: web pages, API, control process."),
    "worker": ("aeo.cli.processes:worker", "Run a worker on this machine."),
    "web": ("aeo.cli.parts:web", "Run the controller's web process alone."),
    "control": ("aeo.cli.parts:control", "Run the controller's control process alone."),
    "flower": ("aeo.cli.flower:flower", "Run Flower on the broker, looking only."),
    "install-service": ("aeo.cli.install_service:install_service", "Write a systemd unit for one of these."),
    "sign-in": ("aeo.cli.parts:sign_in", "Print an address that signs a browser in."),
    "provision": ("aeo.cli.provision:provision", "Make a machine a worker, over ssh."),
    "upgrade": ("aeo.cli.provision:upgrade", "Bring provisioned workers to the AEO that runs here."),
    "decommission": ("aeo.cli.provision:decommission", "Take leave of a provisioned worker."),
    "background": ("aeo.cli.background:background", "Keep a worker running without a service manager."),
    "tunnel": ("aeo.cli.tunnel:tunnel_command", "Keep a worker's machine connected, by ssh."),
    "submit": ("aeo.cli.submit:submit", "Submit an evaluation from a file."),
    "run": ("aeo.cli.submit:run", "Submit with the flags of `harbor run`."),
    "rerun": ("aeo.cli.rerun:rerun", "Run again what did not go well; keep the good results."),
    "status": ("aeo.cli.follow:status", "List evaluations, or show one."),
    "watch": ("aeo.cli.follow:watch", "Follow an evaluation to its end."),
    "export": ("aeo.cli.export:export", "Write an evaluation's trials as CSV, JSON lines or Parquet."),
    "pause": ("aeo.cli.follow:pause", "Let no further trial of an evaluation start."),
    "resume": ("aeo.cli.follow:resume", "Let a paused evaluation go on."),
    "cancel": ("aeo.cli.follow:cancel", "Stop an evaluation; what is finished is kept."),
    "view": ("aeo.cli.view:view", "Show merged jobs in the executor's own viewer."),
    "alerts": ("aeo.cli.alerts:alerts", "Show what somebody should look at now."),
    "simulate": ("aeo.cli.simulate:simulate", "Tell when work would end on a pool, without running it."),
    "doctor": ("aeo.cli.doctor:doctor", "Check this machine, or that nothing is lost and nothing counted twice."),
    "prune": ("aeo.cli.prune:prune", "Remove old evaluations."),
    "keep": ("aeo.cli.prune:keep", "Keep an evaluation from being pruned."),
    "recover": ("aeo.cli.recover:recover", "Rebuild the store from disk."),
    "user": ("aeo.cli.users:user", "Add, list, remove named users."),
    "datasets": ("aeo.cli.datasets:datasets", "List datasets; show, add, remove, download them."),
    "workers": ("aeo.cli.workers:workers", "List workers; weigh, pause, drain, remove them."),
    "secrets": ("aeo.cli.secrets:secrets", "List, set, remove secrets that trials get."),
    "limits": ("aeo.cli.limits:limits", "List, set, clear limits of model providers."),
}


class LazyGroup(click.Group):
    """Imports a command's module only when the command is used, so that others start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command; None if there is no such."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours become messages and exit codes."""
        try:
            return super().invoke(ctx)
        except AeoError as error:
            for line in str(error).splitlines():
                click.echo(f"Error: {line}", err=True)
            ctx.exit(2 if isinstance(error, (InputError, Refused)) else 1)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program."""
        # A name in another script must not end the command on a terminal that cannot show it.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  aeo demo
  aeo submit job.yaml --wait
  aeo run -p ./tasks -a oracle -k 2
  AEO_URL=https://aeo.example.org AEO_TOKEN=... aeo status

\b
Environment:
  AEO_URL    the controller's address (default http://127.0.0.1:7380)
  AEO_TOKEN  your token, or the controller's own; @FILE reads it from a file""",
)
@click.version_option(package_name="agent-eval-orchestrator", prog_name="aeo")
def main() -> None:
    """Run agent evaluations over a fixed pool of machines and get one job folder back."""
