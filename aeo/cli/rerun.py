"""``aeo rerun``: run again what did not go well."""

from __future__ import annotations

import click

from aeo.cli import follow, submit
from aeo.core.model import Outcome


@click.command(
    epilog="""\b
Exit codes: 0 submitted (with --wait: succeeded), 1 failed or no controller, 2 wrong input,
3 cancelled, 130 interrupted (it runs on).

\b
Examples:
  aeo rerun nightly --infra
  aeo rerun nightly --error ApiRateLimitError --error AgentTimeoutError --wait
  aeo rerun nightly --outcome invalid --config repaired.yaml --name nightly-repaired
  aeo rerun nightly --infra --check"""
)
@click.argument("id", metavar="ID|NAME")
@click.option("--error", "errors", multiple=True, metavar="TYPE", help="Run again what ended with this error type.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([outcome.value for outcome in Outcome]),
    help="Run again what ended so.",
)
@click.option("--infra", is_flag=True, help="The same as --outcome infra_error.")
@click.option("--config", metavar="FILE", help="An edited configuration (`-` is standard input); default: the same.")
@click.option("--name", help="Name of the new evaluation and its job folder (default: the next one).")
@click.option("--wait/--no-wait", default=False, help="Follow it to its end.")
@click.option("--check", "only_check", is_flag=True, help="Plan it and tell what would come of it; start nothing.")
@follow.as_json
def rerun(
    id: str,
    errors: tuple[str, ...],
    outcomes: tuple[str, ...],
    infra: bool,
    config: str | None,
    name: str | None,
    wait: bool,
    only_check: bool,
    as_json: bool,
) -> None:
    """Submit an evaluation again and keep its good results.

    What ended as chosen, and what never ran to its end, is run again in a new evaluation; every other result is taken
    over. The earlier evaluation stays as it is. With an edited configuration a result is only kept where its trial is
    still the same: task and its content, agent, model, attempt and every setting that could change what comes out.
    """
    if only_check and wait:
        raise click.UsageError("--check starts nothing that one could --wait for.")
    chosen = [*outcomes, *([Outcome.INFRA_ERROR.value] if infra else ())]
    request = {
        "errors": list(errors),
        "outcomes": list(dict.fromkeys(chosen)),
        "text": submit.read(config) if config else "",
        "file_name": "<stdin>" if config == "-" else config or "",
        "working_dir": submit.working_dir(),
        "options": {} if name is None else {"name": name},
    }
    if only_check:
        submit.plan(lambda client: client.check_rerun(id, request), as_json=as_json)
    else:
        submit.send(lambda client: client.rerun(id, request), wait=wait, as_json=as_json)
