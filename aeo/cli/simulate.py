"""``aeo simulate``: when work would end on a pool, and what more machines would give."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from aeo.cli import show
from aeo.cli.answers import Body, clean
from aeo.cli.client import Client, connect
from aeo.cli.follow import as_json
from aeo.cli.submit import concurrency
from aeo.core import simulate as core
from aeo.core.errors import InputError
from aeo.core.model import Capacity, Needs, PlannedTrial
from aeo.core.simulate import Forecast, Machine, Work

#: Columns of a CSV: the first two must be there.
COLUMNS = ("task", "seconds", "cpus", "memory_mb", "estimated")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is to be played through."""

    work: Work
    overhead: float
    #: Planned trials that are left out, as nobody knows what they take.
    unknown: int = 0

    def on(self, machines: Sequence[Machine]) -> Forecast:
        """Play it through on these."""
        return core.simulate([self.work], machines, overhead=self.overhead)

    def bound(self, machines: Sequence[Machine], found: Forecast) -> float:
        """The least time that anybody could take for what ran."""
        left = set(found.left.get(self.work.id, ()))
        seconds = [self.work.takes(trial) for trial in self.work.trials if trial.name not in left]
        return core.bound(seconds, machines, self.work.limit)


class MachineType(click.ParamType[Machine]):
    """``name=slots[:speed]``."""

    name = "NAME=SLOTS[:SPEED]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Machine:
        """Read it."""
        if isinstance(value, Machine):
            return value
        name, _, rest = str(value).rpartition("=")
        slots, _, speed = rest.partition(":")
        try:
            number, rate = int(slots), float(speed or 1)
        except ValueError:
            number, rate = 0, 0.0
        if not name or not 1 <= number <= 100_000 or not 0 < rate < 1e6:
            self.fail(f"{value!r} is not like a=4 or a=4:0.5.", param, ctx)
        return Machine(name=name, slots=number, speed=rate)


@click.command(
    epilog="""\b
Where the work comes from: an evaluation that ran (ID), or one of --csv, --lognormal, --each.
Where it runs: --worker, else the workers that are online now.

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
@click.option("--each", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="--trials alike.")
@click.option("--trials", type=click.IntRange(1, 1_000_000), help="How many of them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn.")
@click.option("--worker", "workers", type=MachineType(), multiple=True, help="A machine; repeatable.")
@click.option("--add", multiple=True, metavar="N|NAME=SLOTS[:SPEED]", help="Also tell what more machines would give.")
@click.option("--per-worker-concurrency", type=concurrency, metavar="N|all", help="Slots of each it may use.")
@click.option("--overhead", type=click.FloatRange(0), default=0.0, help="Seconds beside each trial (default 0).")
@click.option("--blind", is_flag=True, help="As if nothing were known of how long each trial takes.")
@as_json
def simulate(as_json: bool, workers: tuple[Machine, ...], add: tuple[str, ...], **given: Any) -> None:
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
    names = [machine.name for machine in pool]
    if len(set(names)) < len(names):
        raise InputError("two machines have the same name.", field="--worker")
    more = [*pool, *_added(add or ("2",), pool)]
    found, then = asked.on(pool), asked.on(more)
    body = _body(asked, pool, found) | {"with_added": _body(asked, more, then), "left_out": asked.unknown}
    if as_json:
        show.as_json(body)
    else:
        _print(body, [machine.name for machine in more[len(pool) :]])


def _asked(client: Client | None, given: Mapping[str, Any]) -> Ask:
    limit, unknown = given["per_worker_concurrency"], 0
    if given["id"] is not None:
        body = _of(client).trace(given["id"])
        limit = body.get("per_worker_concurrency") if limit is None else limit
        items = [item for item in body.get("trials") or () if isinstance(item, dict)]
        unknown = int(body.get("planned") or 0) - len(items)
        rows = [_traced(item) for item in items]
    elif given["file"] is not None:
        rows = _table(given["file"])
    else:
        rows = [(f"task-{number}", one, one, Needs(), "") for number, one in enumerate(_drawn(given), 1)]
    if not rows:
        raise InputError("no trial of it has run.", field="ID" if given["id"] is not None else "--csv")
    planned = tuple(
        PlannedTrial(
            name=f"trial-{number}",
            task=task,
            estimated_seconds=1.0 if given["blind"] else expected,
            needs=needs,
            labels={"model": model} if model else {},
        )
        for number, (task, _, expected, needs, model) in enumerate(rows)
    )
    seconds = {trial.name: row[1] for trial, row in zip(planned, rows, strict=True)}
    work = Work(trials=planned, seconds=seconds, limit=None if limit == "all" else limit)
    return Ask(work=work, overhead=given["overhead"], unknown=unknown)


_Row = tuple[str, float, float, Needs, str]


def _traced(item: Body) -> _Row:
    needs = Needs(cpus=item.get("cpus") or 0.0, memory_mb=item.get("memory_mb") or 0, disk_mb=item.get("disk_mb") or 0)
    seconds = float(item["seconds"])
    return clean(item.get("task", "")), seconds, float(item.get("estimated_seconds") or seconds), needs, item["model"]


def _drawn(given: Mapping[str, Any]) -> list[float]:
    if given["each"] is not None:
        return [given["each"]] * given["trials"]
    try:
        median, sigma = map(float, given["lognormal"].split(","))
    except ValueError:
        median, sigma = 0.0, 0.0
    if not (0 < median < 1e9 and 0 <= sigma < 20):
        raise InputError("is not like 300,1.2.", field="--lognormal")
    return core.drawn(median, sigma, given["trials"], given["seed"])


def _table(file: str) -> list[_Row]:
    with ExitStack() as stack:
        try:
            lines: Iterable[str] = sys.stdin
            if file != "-":
                lines = stack.enter_context(Path(file).open(newline="", encoding="utf-8-sig"))
            reader = csv.DictReader(lines)
            names = tuple(reader.fieldnames or ())
            if not {"task", "seconds"} <= set(names) or not set(names) <= set(COLUMNS):
                raise InputError(
                    f"has not the columns {','.join(COLUMNS)}.", field=file, fix="The first two must be there."
                )
            return [_row(f"{file}:{number}", row) for number, row in enumerate(reader, 2)]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"cannot be read: {error}", field=file) from None


def _row(place: str, row: Mapping[str, str | None]) -> _Row:
    def number(name: str, otherwise: float = 0.0) -> float:
        text = row.get(name) or ""
        try:
            value = float(text) if text else otherwise
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise InputError(f"{text!r} is no number of at least 0.", field=f"{place}: {name}")
        return value

    if not row.get("seconds"):
        raise InputError("has no seconds.", field=place)
    seconds = number("seconds")
    needs = Needs(cpus=number("cpus"), memory_mb=math.ceil(number("memory_mb")))
    return row["task"] or "", seconds, number("estimated", seconds), needs, ""


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


def _added(given: Sequence[str], pool: Sequence[Machine]) -> list[Machine]:
    largest = max(pool, key=lambda machine: machine.slots * machine.speed)
    added: list[Machine] = []
    for text in given:
        if text.isascii() and text.isdigit() and len(text) < 5:
            added += [
                replace(largest, name=f"added-{len(added) + number + 1}", weight=None) for number in range(int(text))
            ]
        else:
            added.append(MachineType().convert(text, None, None))
    taken = {machine.name for machine in pool}
    return [replace(one, name=f"{one.name} (added)") if one.name in taken else one for one in added]


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
    click.echo(f"{body['trials']} trials end after {show.span(body['makespan'])}")
    click.echo(f"Nobody could be done before {show.span(body['bound'])}; the slots are busy {body['utilisation']:.0%}")
    if body["unplaced"]:
        click.echo(f"{body['unplaced']} trials fit no machine and are left out")
    if body["left_out"]:
        click.echo(f"{body['left_out']} planned trials have not run and are left out")
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


def _share(item: Body) -> str:
    whole = item["end"] * item["slots"]
    return f"{item['busy_seconds'] / whole:.0%}" if whole else "-"
