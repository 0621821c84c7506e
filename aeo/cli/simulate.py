"""``aeo simulate``: when work would end on a pool, and what more machines would give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import click

from aeo.cli import numbers, show, trial_rows, views
from aeo.cli.answers import Body, clean
from aeo.cli.client import Client, connect
from aeo.cli.follow import as_json
from aeo.cli.numbers import Number
from aeo.cli.submit import concurrency
from aeo.cli.trial_rows import Row
from aeo.core import simulate as core
from aeo.core.bounds import bound_of
from aeo.core.choose import covers
from aeo.core.errors import InputError
from aeo.core.model import Capacity, Needs, PlannedTrial
from aeo.core.pool import Limit
from aeo.core.simulate import Forecast, Machine, Work
from aeo.core.words import count

#: Of a machine that is given: most slots, which may be more than a worker has, and its least and greatest speed.
MOST_PLAYED_SLOTS = 100_000
SPEEDS = (0.001, 1000)
#: Most machines that --add N adds.
MOST_ADDED = 1000
_WANTED = (
    f"NAME=SLOTS[:SPEED] such as a=4 or a=4:0.5, with SLOTS a whole number from 1 to {MOST_PLAYED_SLOTS} and SPEED "
    f"{numbers.allowed(*SPEEDS)}"
)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is to be played through."""

    work: Work
    overhead: float
    #: Of the model providers that its trials use.
    limits: Mapping[str, Limit] = field(default_factory=dict)
    #: Planned trials that are left out, as nobody knows what they take.
    unknown: int = 0

    def on(self, machines: Sequence[Machine]) -> Forecast:
        """Play it through on these."""
        return core.simulate([self.work], machines, limits=self.limits, overhead=self.overhead)

    def bound(self, machines: Sequence[Machine], found: Forecast) -> float:
        """The least time that anybody could take for what ran."""
        return bound_of(self.work, machines, self.limits, without=set(found.left.get(self.work.id, ())))

    def unseen(self, machines: Sequence[Machine]) -> list[str]:
        """Machines of which nothing but slots is known, where trials declare more than that."""
        declared = any(trial.needs != Needs() for trial in self.work.trials)
        return [machine.name for machine in machines if declared and machine.capacity is None]


class MachineType(click.ParamType[Machine]):
    """``name=slots[:speed]``."""

    name = "NAME=SLOTS[:SPEED]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Machine:
        """Read it."""
        if isinstance(value, Machine):
            return value
        name, _, rest = str(value).rpartition("=")
        slots, timed, speed = rest.partition(":")
        number = numbers.whole(slots, 1, MOST_PLAYED_SLOTS)
        rate = numbers.read(speed, *SPEEDS) if timed else 1.0
        if not name or number is None or rate is None:
            self.fail(f"{clean(value)!r} is not {_WANTED}.", param, ctx)
        return Machine(name=name, slots=number, speed=rate)


class MoreType(click.ParamType[Machine | int]):
    """How many more, or one of them."""

    name = "N|NAME=SLOTS[:SPEED]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Machine | int:
        """Read it."""
        number = numbers.whole(str(value), 0, MOST_ADDED)
        if number is not None:
            return number
        if "=" not in str(value):
            self.fail(f"{clean(value)!r} is neither a whole number from 0 to {MOST_ADDED} nor {_WANTED}.", param, ctx)
        return MachineType().convert(value, param, ctx)


@click.command(
    epilog="""\b
Where the work comes from: an evaluation that ran (ID), or one of --csv, --lognormal, --each.
Where it runs: --worker, else the workers that are online now. Of --worker only slots and speed are known: what trials
declare of cpus and memory counts on the workers that are online alone.
The limits of model providers (`aeo limits`) hold for an evaluation that ran; the others name no model.

\b
Examples:
  aeo simulate nightly
  aeo simulate nightly --add 2
  aeo simulate --csv trace.csv --worker a=8 --worker old=4:0.5
  aeo simulate --lognormal 300,1.2 --trials 500 --worker a=16 --add big=32:2 --json"""
)
@click.argument("id", metavar="[ID]", required=False)
@click.option("--csv", "file", metavar="FILE", help="A table with the columns task,seconds[,cpus,memory_mb,estimated].")
@click.option("--lognormal", metavar="MEDIAN,SIGMA", help="Draw --trials durations: half are below the median.")
@click.option("--each", type=Number(0, trial_rows.LONGEST, above=True), metavar="SECONDS", help="--trials alike.")
@click.option("--trials", type=click.IntRange(1, trial_rows.MOST), metavar="N", help="How many of them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn.")
@click.option("--worker", "workers", type=MachineType(), multiple=True, help="A machine; repeatable.")
@click.option("--add", type=MoreType(), multiple=True, help="Also tell what more machines would give (default 2).")
@click.option(
    "--per-worker-concurrency",
    type=concurrency,
    metavar="N|all",
    help="Slots of each it may use (default: of ID as it was submitted, else all; `aeo submit` takes 1).",
)
@click.option(
    "--overhead",
    type=Number(0, trial_rows.LONGEST),
    default=0.0,
    metavar="SECONDS",
    help="Beside each trial (default 0).",
)
@click.option("--blind", is_flag=True, help="As if nothing were known of how long each trial takes.")
@as_json
def simulate(as_json: bool, workers: tuple[Machine, ...], add: tuple[Machine | int, ...], **given: Any) -> None:
    """Tell when the work of evaluation ID would end on a pool, without running it.

    It is played through by the rules that a running controller follows. Without --add it tells what two more machines
    like the largest would give.
    """
    sources = [name for name in ("id", "file", "lognormal", "each") if given[name] is not None]
    if len(sources) != 1:
        raise click.UsageError("Give one of ID, --csv, --lognormal, --each.")
    if (given["trials"] is None) == (sources[0] in ("lognormal", "each")):
        raise click.UsageError("--trials goes with --lognormal or --each, and these need it.")
    client = connect() if sources[0] == "id" or not workers else None
    asked = _asked(client, given)
    pool = list(workers) or _live(client)
    _check_names(pool, "--worker")
    more = [*pool, *_added(add or (2,), pool)]
    _check_names(more, "--add")
    found, then = asked.on(pool), asked.on(more)
    body = _body(asked, pool, found) | {"with_added": _body(asked, more, then), "left_out": asked.unknown}
    body["limits"] = {key: {"trials": one.trials, "per_minute": one.per_minute} for key, one in asked.limits.items()}
    if unseen := asked.unseen(more):
        show.warnings([f"what trials declare of cpus and memory is not counted on {', '.join(map(clean, unseen))}."])
    if as_json:
        show.as_json(body)
    else:
        _print(body, [machine.name for machine in more[len(pool) :]])


def _asked(client: Client | None, given: Mapping[str, Any]) -> Ask:
    limit, unknown, limits = given["per_worker_concurrency"], 0, {}
    if given["id"] is not None:
        body = _of(client).trace(given["id"])
        limit = body.get("per_worker_concurrency") if limit is None else limit
        items = [item for item in body.get("trials") or () if isinstance(item, dict)]
        unknown = int(body.get("planned") or 0) - len(items)
        rows = [_traced(item) for item in items]
        if not rows:
            raise InputError("no trial of it has run.", field="ID", fix="Simulate it once some have.")
        limits = _limits(_of(client), {row.model for row in rows})
    elif given["file"] is not None:
        rows = trial_rows.read(given["file"])
    elif given["each"] is not None:
        rows = trial_rows.alike([given["each"]] * given["trials"])
    else:
        rows = trial_rows.alike(trial_rows.of_distribution(given["lognormal"], given["trials"], given["seed"]))
    planned = tuple(
        PlannedTrial(
            name=f"trial-{number}",
            task=row.task,
            estimated_seconds=1.0 if given["blind"] else row.expected,
            needs=row.needs,
            labels={"model": row.model} if row.model else {},
        )
        for number, row in enumerate(rows)
    )
    seconds = {trial.name: row.seconds for trial, row in zip(planned, rows, strict=True)}
    work = Work(trials=planned, seconds=seconds, limit=None if limit == "all" else limit)
    return Ask(work=work, overhead=given["overhead"], limits=limits, unknown=unknown)


def _traced(item: Body) -> Row:
    needs = Needs(cpus=item.get("cpus") or 0.0, memory_mb=item.get("memory_mb") or 0, disk_mb=item.get("disk_mb") or 0)
    seconds = float(item["seconds"])
    return Row(
        task=clean(item.get("task", "")),
        seconds=seconds,
        expected=float(item.get("estimated_seconds") or seconds),
        needs=needs,
        model=str(item.get("model") or ""),
    )


def _limits(client: Client, models: Set[str]) -> dict[str, Limit]:
    """The controller's limits that hold for these."""
    return {
        item.key: Limit(trials=item.trials, per_minute=item.per_minute)
        for item in views.limits(client.limits())
        if any(covers(item.key, model) for model in models)
    }


def _of(client: Client | None) -> Client:
    if client is None:
        raise click.UsageError("Give --worker.")
    return client


def _live(client: Client | None) -> list[Machine]:
    """The workers that are online."""
    found = []
    for item in _of(client).workers().get("workers") or ():
        if item.get("state") != "online":
            continue
        given = item["info"]["capacity"]
        known = {name: given[name] for name in ("slots", "cpus", "memory_mb", "disk_mb", "overcommit") if name in given}
        capacity = Capacity(**known)
        weight = item.get("weight_override")
        known = {"name": item["info"]["id"], "slots": capacity.slots, "speed": float(item.get("speed") or 1.0)}
        found.append(Machine(**known, capacity=capacity, weight=weight))
    if not found:
        raise InputError("no worker is online.", fix="Say which machines with --worker NAME=SLOTS.")
    return found


def _added(given: Sequence[Machine | int], pool: Sequence[Machine]) -> list[Machine]:
    largest = max(pool, key=lambda machine: machine.slots * machine.speed)
    added: list[Machine] = []
    for one in given:
        if isinstance(one, Machine):
            added.append(one)
        else:
            added += [replace(largest, name=f"added-{len(added) + place + 1}", weight=None) for place in range(one)]
    taken = {machine.name for machine in pool}
    return [replace(one, name=f"{one.name} (added)") if one.name in taken else one for one in added]


def _check_names(machines: Sequence[Machine], field: str) -> None:
    names = {machine.name for machine in machines}
    if len(names) < len(machines):
        raise InputError("two machines have the same name.", field=field)


def _body(asked: Ask, machines: Sequence[Machine], found: Forecast) -> dict[str, Any]:
    return {
        "makespan": found.makespan,
        "bound": asked.bound(machines, found),
        "utilisation": found.utilisation,
        "trials": len(found.spans),
        "unplaced": sum(map(len, found.left.values())),
        "workers": [_machine(machine, found) for machine in machines],
    }


def _machine(machine: Machine, found: Forecast) -> dict[str, Any]:
    spans = found.of(machine.name)
    return {
        "worker": machine.name,
        "slots": machine.slots,
        "speed": machine.speed,
        "trials": len(spans),
        "busy_seconds": math.fsum(span.end - span.start for span in spans),
        "end": max((span.end for span in spans), default=0.0),
    }


def _print(body: Body, added: Sequence[str]) -> None:
    then = body["with_added"]
    ends = "ends" if body["trials"] == 1 else "end"
    click.echo(f"{count(body['trials'], 'trial')} {ends} after {show.span(body['makespan'])}")
    click.echo(f"Nobody could be done before {show.span(body['bound'])}; the slots are busy {body['utilisation']:.0%}")
    if body["limits"]:
        click.echo(f"Under the limits of {', '.join(_limit(key, one) for key, one in body['limits'].items())}")
    if number := body["unplaced"]:
        fits = "fits no machine and is" if number == 1 else "fit no machine and are"
        click.echo(f"{count(number, 'trial')} {fits} left out")
    if number := body["left_out"]:
        has = "has not run and is" if number == 1 else "have not run and are"
        click.echo(f"{count(number, 'planned trial')} {has} left out")
    click.echo()
    show.table(
        ("worker", "slots", "speed", "trials", "busy", "end"),
        [
            (
                *(item["worker"], str(item["slots"]), f"{item['speed']:g}", str(item["trials"])),
                *(_share(item), show.span(item["end"])),
            )
            for item in body["workers"]
        ],
        right=("slots", "speed", "trials", "busy", "end"),
    )
    if added:
        times = body["makespan"] / then["makespan"] if then["makespan"] else 1.0
        click.echo(f"\nWith {', '.join(added)}: {show.span(then['makespan'])}, {times:.2f} times as fast")


def _limit(key: str, limit: Body) -> str:
    said = [f"{limit['trials']} at once"] if limit["trials"] else []
    said += [f"{count(limit['per_minute'], 'start')} a minute"] if limit["per_minute"] else []
    return f"{key} ({', '.join(said)})"


def _share(item: Body) -> str:
    whole = item["end"] * item["slots"]
    return f"{item['busy_seconds'] / whole:.0%}" if whole else "-"
