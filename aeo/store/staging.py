"""Everything an evaluation consists of but its status, written under keys that nobody reads until they are renamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from uuid import uuid4

from aeo.core.choose import amounts
from aeo.core.errors import InputError
from aeo.core.model import Batch, Evaluation, Needs, PlannedTrial, TrialState
from aeo.store.connection import Db
from aeo.store.keys import key

#: Trials per command; keeps every command short, so that nobody waits for a large submission.
CHUNK = 2000
#: Seconds a staged submission lives when its process died before publishing it.
_STAGED_LIFE = 3600


def stage(
    db: Db, evaluation: Evaluation, shares: Mapping[Batch, Sequence[str]], unfit: Mapping[str, frozenset[str]]
) -> tuple[list[tuple[str, str]], int]:
    """Write it; returns staged and final keys, and how many kinds of trials there are.

    Raises:
        InputError: a share names a trial twice or one that is not planned.
    """
    whole, kinds = _shares_of_all(evaluation, shares), _kinds(evaluation)
    tables = _tables(evaluation, shares, whole, unfit) | _kind_tables(evaluation, whole, kinds)
    return _write(db, tables), len(kinds)


def _shares_of_all(evaluation: Evaluation, shares: Mapping[Batch, Sequence[str]]) -> dict[str, Sequence[str]]:
    given = list(chain.from_iterable(shares.values()))
    planned = [trial.name for trial in evaluation.plan.trials]
    known, once = set(planned), set(given)
    if len(once) < len(given) or not once <= known:
        raise InputError("A share names a trial twice, or one that is not planned.")
    return {
        **{batch.id: trials for batch, trials in shares.items()},
        "": [name for name in planned if name not in once],
    }


_Table = Mapping[str, float] | Mapping[str, str] | frozenset[str]


def _tables(
    evaluation: Evaluation,
    shares: Mapping[Batch, Sequence[str]],
    whole: Mapping[str, Sequence[str]],
    unfit: Mapping[str, frozenset[str]],
) -> dict[str, tuple[str, _Table]]:
    """Everything an evaluation consists of but its status: final key to its type and content."""
    id = evaluation.id
    estimates = {trial.name: round(trial.estimated_seconds * 1000) for trial in evaluation.plan.trials}
    left = {batch: float(sum(estimates[name] for name in names)) for batch, names in whole.items() if names}
    tables: dict[str, tuple[str, _Table]] = {
        key("trials", id): ("hash", dict.fromkeys(estimates, TrialState.PENDING.value)),
        key("estimates", id): ("hash", estimates),
        key("where", id): ("hash", {name: batch for batch, names in whole.items() for name in names}),
        key("batches", id): ("hash", {batch.id: batch.worker for batch in shares}),
        key("messages", id): ("hash", {batch.id: batch.message for batch in shares}),
        key("left", id): ("zset", left),
    }
    for batch, names in whole.items():
        tables[key("share", id, batch)] = ("zset", {name: float(rank) for rank, name in enumerate(names)})
    for worker, trials in unfit.items():
        tables[key("unfit", id, worker)] = ("set", trials)
    return tables


def _kind_tables(
    evaluation: Evaluation, whole: Mapping[str, Sequence[str]], known: Mapping[str, int]
) -> dict[str, tuple[str, _Table]]:
    """The trials by what they take: nothing where they take nothing, little where all take the same."""
    id = evaluation.id
    if not known:
        return {}
    texts = {str(number): kind for kind, number in known.items()}
    tables: dict[str, tuple[str, _Table]] = {key("kinds", id): ("hash", texts)}
    if len(known) > 1:
        kind_of = {trial.name: str(known[_kind(trial)]) for trial in evaluation.plan.trials}
        tables[key("kind", id)] = ("hash", kind_of)
        tables[key("kind_left", id)] = ("hash", Counter(kind_of.values()))
        queues: dict[str, dict[str, float]] = {}
        for batch, names in whole.items():
            for place, name in enumerate(names):
                queues.setdefault(key("queue", id, batch, kind_of[name]), {})[name] = float(place)
        tables |= {name: ("zset", places) for name, places in queues.items()}
    return tables


def _kinds(evaluation: Evaluation) -> dict[str, int]:
    """Number each kind of trial; none where no trial says what it takes."""
    found = {kind: number for number, kind in enumerate(dict.fromkeys(map(_kind, evaluation.plan.trials)))}
    return {} if found.keys() <= {_NOTHING} else found


def _kind(trial: PlannedTrial) -> str:
    model = "/".join(part for part in (trial.labels.get("provider"), trial.labels.get("model")) if part)
    return " ".join([*map(str, amounts(trial.needs)), model])


def needs_of(kind: str) -> Needs:
    """What trials of a kind take."""
    cpus, memory, disk, _ = kind.split(" ", 3)
    return Needs(cpus=int(cpus) / 1000, memory_mb=int(memory), disk_mb=int(disk))


#: The kind of a trial that declares nothing and has no model.
_NOTHING = "0 0 0 "


def _write(db: Db, tables: Mapping[str, tuple[str, _Table]]) -> list[tuple[str, str]]:
    """Write the tables under keys that nobody reads; return staged and final keys."""
    submission, staged = uuid4().hex, []
    for number, (final, (kind, content)) in enumerate(tables.items()):
        name = key("staged", submission, str(number))
        for chunk in chunks(content):
            with db.client.pipeline(transaction=False) as pipe:
                if kind == "set":
                    pipe.sadd(name, *chunk)
                elif kind == "zset":
                    pipe.zadd(name, {item: content[item] for item in chunk})  # type: ignore[index]
                else:
                    pipe.hset(name, mapping={item: content[item] for item in chunk})  # type: ignore[index]
                pipe.expire(name, _STAGED_LIFE)
                pipe.execute()
        if content:
            staged.append((name, final))
    return staged


def chunks(items: Iterable[str]) -> Iterator[list[str]]:
    """Cut into lists of at most `CHUNK`."""
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
