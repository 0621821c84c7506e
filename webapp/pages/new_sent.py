"""What a person sent from the page of a new evaluation, and what it offers to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from werkzeug.datastructures import MultiDict

from aeo import drafts, executors, sharing
from aeo.checks import Check
from aeo.core.errors import AeoError
from aeo.core.model import Capacity
from aeo.datasets import configured
from aeo.drafts import Draft
from aeo.executors.forms import AgentRow, Form, Values
from aeo.site import Site
from aeo.store import workers
from aeo.store.workers import WorkerStatus

#: Of the names of a form's own fields.
OWN = "own."


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A configured dataset to choose."""

    name: str
    #: What stands in the form for it.
    text: str
    #: The part of a configuration that means it.
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkerChoice:
    """A worker to choose, and whether it fits."""

    id: str
    display_name: str
    state: str
    busy: int
    capacity: Capacity | None
    version: str
    #: Why it would get nothing, or not everything; empty when it fits.
    reason: str


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many tasks the filters leave."""

    #: Of the dataset.
    total: int
    chosen: tuple[str, ...]
    agents: int
    #: None when it is no number.
    attempts: int | None


def draft(sent: MultiDict[str, str]) -> Draft:
    """Read the fields of a form; rows of agents in which nothing was typed stay, to be typed in."""
    return Draft(
        executor=sent.get("executor", executors.PLAIN),
        workers=tuple(sent.getlist("workers")),
        values=Values(
            dataset=sent.get("dataset_choice", "") or sent.get("dataset", "").strip(),
            include=lines(sent.get("include", "")),
            exclude=lines(sent.get("exclude", "")),
            agents=_rows(sent),
            attempts=sent.get("attempts", "").strip(),
            own={key.removeprefix(OWN): value.strip() for key, value in sent.items() if key.startswith(OWN)},
        ),
        **{
            key: sent.get(key, "").strip()
            for key in (
                *("name", "per_worker_concurrency", "priority", "agent_timeout_multiplier", "max_requeues"),
                "secrets",
            )
        },
    )


def lines(text: str) -> tuple[str, ...]:
    """The lines of a text in which something stands."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def unix(text: str) -> str:
    """A text with line ends as files have them; browsers send others."""
    return text.replace("\r\n", "\n")


def _rows(sent: MultiDict[str, str]) -> tuple[AgentRow, ...]:
    # One of each for every row, in their order.
    columns = (sent.getlist("agent"), sent.getlist("model"), sent.getlist("origin"))
    return tuple(
        AgentRow(agent=agent.strip(), model=model.strip(), origin=int(origin) if origin.isdecimal() else None)
        for agent, model, origin in zip(*columns, strict=False)
    )


def typed(rows: Sequence[AgentRow]) -> tuple[AgentRow, ...]:
    """The rows in which something stands, or of which the configuration has more than the form shows."""
    return tuple(row for row in rows if row.agent or row.model or row.origin is not None)


def offers(site: Site, executor: str) -> list[Offer]:
    """The datasets that are configured for an executor."""
    form = drafts.form(executor)
    if form is None or "dataset" not in form.words:
        return []
    found = []
    for item in configured.read(site.shared).values():
        if item.executor != executor:
            continue
        try:
            config = configured.knowledge(executor).config(configured.source(site.shared, item))
        except AeoError:
            # Its own page says what is wrong with it.
            continue
        text = form.read(config).dataset
        if text:
            found.append(Offer(name=item.name, text=text, config=config))
    return found


def choices(site: Site, draft: Draft, check: Check | None) -> list[WorkerChoice]:
    """Every worker, and those that were chosen and are not there."""
    told = {item.worker: item.reason for item in check.unfit} if check else {}
    known = [_choice(worker, draft.executor, told) for worker in workers.all(site.db)]
    missing = [id for id in draft.workers if id not in {item.id for item in known}]
    return known + [_unknown(id) for id in missing]


def _unknown(id: str) -> WorkerChoice:
    reason = "no worker of this id is registered"
    return WorkerChoice(id=id, display_name=id, state="", busy=0, capacity=None, version="", reason=reason)


def _choice(worker: WorkerStatus, executor: str, told: Mapping[str, str]) -> WorkerChoice:
    info = worker.info
    reason = told.get(info.id, "")
    if not sharing.takes_work(worker):
        reason = sharing.standing(worker)
    return WorkerChoice(
        id=info.id,
        display_name=info.display_name or info.id,
        state=worker.state.value,
        busy=worker.busy,
        capacity=info.capacity,
        version=info.executors.get(executor, ""),
        reason=reason or sharing.lacks(worker, executor, None),
    )


def count(form: Form, draft: Draft) -> Count | None:
    """How many tasks and agents there are; None when the dataset's tasks cannot be told before it is planned."""
    names = form.tasks(draft.values.dataset)
    if names is None:
        return None
    attempts = draft.values.attempts or "1"
    return Count(
        total=len(names),
        chosen=form.chosen(draft.values, names),
        agents=max(1, len(typed(draft.values.agents))),
        attempts=int(attempts) if attempts.isdecimal() and len(attempts) < 10 else None,
    )
