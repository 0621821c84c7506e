"""The store as the pure policy sees it."""

from __future__ import annotations

import json
from collections import defaultdict

from aeo.codec import loads
from aeo.core.model import Capacity, Needs, WorkerInfo
from aeo.core.pool import Horizon, Job, Kind, Limit, Pace, Place, Pool, Room, Run, Seat, Share, Waiting
from aeo.store import trials
from aeo.store.connection import Db
from aeo.store.keys import key


def pool_of(db: Db, *, patience: float) -> Pool:
    """Everything a choice looks at, read from the store's own tables."""
    client = db.client
    jobs = {id: _job(db, id) for id in client.zrange(key("evaluations"), 0, -1)}
    names = {seat.worker for job in jobs.values() for seat in job.seats.values()} | set(client.hkeys(key("workers")))
    limits = {}
    for name, text in client.hgetall(key("limits")).items():
        most, per_minute = text.split(" ")
        limits[name] = Limit(trials=int(most), per_minute=float(per_minute))
    return Pool(
        now=trials.now(db).timestamp(),
        jobs=jobs,
        places={name: _place(db, name, jobs) for name in names},
        limits=limits,
        paced={name: float(at) / 1000 for name, at in client.hgetall(key("paced")).items()},
        patience=patience,
    )


def _job(db: Db, id: str) -> Job:
    client = db.client
    status = client.hgetall(key("evaluation", id))
    states = client.hgetall(key("trials", id))
    kinds = {number: _kind(text) for number, text in client.hgetall(key("kinds", id)).items()} or {"": Kind()}
    kind_of = client.hgetall(key("kind", id))
    only = next(iter(kinds))
    workers = client.hgetall(key("batches", id))
    shares = {}
    left = dict(client.zrange(key("left", id), 0, -1, withscores=True))
    estimates = {trial: int(value) / 1000 for trial, value in client.hgetall(key("estimates", id)).items()}
    for batch in [*workers, ""]:
        queues: dict[str, list[Waiting]] = defaultdict(list)
        for trial, place in client.zrange(key("share", id, batch), 0, -1, withscores=True):
            assert states[trial] == "pending"
            queues[kind_of.get(trial, only)].append(Waiting(trial=trial, place=place, seconds=estimates[trial]))
        if queues:
            shares[batch] = Share(seconds=left[batch] / 1000, queues=queues)
    turned = client.hgetall(key("turned", id))
    since = client.hgetall(key("batch_since", id))
    marks = client.hgetall(key("avoid", id))
    leaves = client.hgetall(key("leaves", id))
    running = (json.loads(client.hget(key("claims", id), trial)) for trial in client.zrange(key("leases", id), 0, -1))
    return Job(
        priority=int(status["priority"]),
        runs=status["state"] == "running",
        untouched=status["pending"] == status["total"],
        kinds=kinds,
        shares=shares,
        seats={
            batch: Seat(
                worker=worker,
                state=client.hget(key("batch_states", id), batch),
                since=float(client.zscore(key("waiting", worker), f"{id} {batch}") or since.get(batch, 0)) / 1000,
                turned=float(turned[batch].split(" ")[0]) / 1000 if batch in turned else None,
                leaves=float(leaves[batch]) / 1000 if batch in leaves else None,
                rests=float(leaves[f"{batch} rests"]) / 1000 if f"{batch} rests" in leaves else None,
            )
            for batch, worker in workers.items()
        },
        unfit={worker: client.smembers(key("unfit", id, worker)) for worker in set(workers.values())},
        avoid={
            trial: (worker, float(marks[f"{trial} since"]) / 1000)
            for trial, worker in marks.items()
            if " " not in trial
        },
        pace=_pace(client.hgetall(key("speeds", id))),
        horizon=_horizon(leaves.get(" horizon")),
        running={
            run["trial"]: Run(
                batch=run["batch"],
                worker=run["worker"],
                since=run["started_at"] / 1000,
                seconds=estimates[run["trial"]],
            )
            for run in running
        },
    )


def _horizon(text: str | None) -> Horizon | None:
    if text is None:
        return None
    at, work, longest, fresh = (float(part) / 1000 for part in text.split(" "))
    return Horizon(at=at, work=work, longest=longest, fresh=fresh)


def _pace(told: dict[str, str]) -> Pace | None:
    speeds = {worker: int(value) / 1000 for worker, value in told.items() if " " not in worker}
    return Pace(speeds=speeds, power=int(told[" power"]) / 1000) if speeds else None


def _kind(text: str) -> Kind:
    cpus, memory, disk, model = text.split(" ", 3)
    return Kind(needs=Needs(cpus=int(cpus) / 1000, memory_mb=int(memory), disk_mb=int(disk)), model=model)


def _place(db: Db, name: str, jobs: dict[str, Job]) -> Place:
    client = db.client
    told = client.hgetall(key("worker", name))
    info = told.get("info")
    taken = {}
    for seat, text in client.hgetall(key("loads", name)).items():
        evaluation, batch = seat.split(" ")
        taken[evaluation, batch] = jobs[evaluation].kinds[text.split(" ")[0]]
    room = None
    if text := client.get(key("room", name)):
        evaluation, trial, since = text.split(" ")
        kinds = client.hgetall(key("kind", evaluation))
    if text and client.hget(key("rooms", evaluation), trial) == name:
        room = Room(evaluation=evaluation, trial=trial, kind=kinds.get(trial, "0"), since=float(since) / 1000)
    return Place(
        capacity=_capacity(info) if info else None,
        takes=told.get("state") not in ("paused", "draining") and float(told.get("weight", 1)) != 0,
        alive=not client.sismember(key("idle"), name),
        loads=taken,
        room=room,
    )


def _capacity(info: str) -> Capacity:
    assert json.loads(info)["capacity"]
    return loads(WorkerInfo, info).capacity
