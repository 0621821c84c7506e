"""Which secrets an evaluation needs, and who has them: told before it starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase

from aeo import executors, records
from aeo.core.errors import InputError, Problem, Unavailable
from aeo.core.model import Plan, Spec
from aeo.executors import Executor
from aeo.executors.secrets import names_secret
from aeo.secrets import vault
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.workers import WorkerStatus

#: Names that a worker tells, at most.
MOST_TOLD = 200


def told(patterns: Iterable[str], environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Names of the secrets that stand in a worker's environment and that these patterns let it tell.

    A name stands for itself; a pattern with ``*`` for names that look like secrets. Ours are never told.
    """
    environment = os.environ if environment is None else environment
    patterns = tuple(patterns)
    found = [
        name
        for name, value in environment.items()
        if value and not name.startswith("AEO_") and any(_allows(pattern, name) for pattern in patterns)
    ]
    return tuple(sorted(found)[:MOST_TOLD])


def _allows(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) and names_secret(name) if "*" in pattern else name == pattern


def settled(executor: Executor, spec: Spec, plan: Plan | None) -> Spec:
    """The spec with all the secrets it needs: those it names, and those its configuration refers to."""
    more = [item.any_of[0] for item in executors.wanted(executor, spec, plan) if item.required]
    return replace(spec, secrets=tuple(dict.fromkeys((*spec.secrets, *more))))


def elsewhere(site: Site, spec: Spec) -> frozenset[str]:
    """Names of the secrets that are not set on the controller: a worker of this evaluation must have them itself.

    Raises:
        Unavailable: the file of secrets is damaged.
    """
    return frozenset(spec.secrets) - vault.names(site) if spec.secrets else frozenset()


def check(site: Site, executor: Executor, spec: Spec, plan: Plan | None, pool: Sequence[WorkerStatus]) -> None:
    """See that each secret is set somewhere: on the controller, where it can be opened, or on one of these workers.

    Raises:
        InputError: one is not; tells what to do.
    """
    if not spec.secrets:
        return
    problems: list[Problem] = []
    try:
        vault.values(site, spec.secrets)
        missing = elsewhere(site, spec)
    except Unavailable as error:
        raise InputError(f"cannot be read on the controller. {error}", field="secrets") from None
    by = {item.any_of[0]: item.by for item in executors.wanted(executor, spec, plan) if item.required}
    on = ", ".join(worker.info.id for worker in pool) or "any worker"
    for name in spec.secrets:
        if name in missing and not any(name in worker.info.variables for worker in pool):
            who = f"{name}, which {by[name]} refers to," if name in by else name
            problems.append(
                Problem(
                    field="secrets",
                    message=f"{who} is set neither on the controller nor on {on}.",
                    fix=f"Set it once for all: `aeo secrets set {name}` (an administrator); or in the environment of "
                    "each worker, which is then restarted.",
                )
            )
    if problems:
        raise InputError(problems=tuple(problems))


def advice(
    site: Site, executor: Executor, spec: Spec, plan: Plan | None, pool: Sequence[WorkerStatus]
) -> tuple[str, ...]:
    """What usually is needed and neither named nor on every worker, one sentence each."""
    usual = [item for item in executors.wanted(executor, spec, plan) if not item.required]
    usual = [item for item in usual if not set(item.any_of) & set(spec.secrets)]
    if not usual:
        return ()
    here = vault.names(site)
    said = []
    for item in usual:
        without = [worker.info.id for worker in pool if not set(item.any_of) & set(worker.info.variables)]
        if not without:
            continue
        set_here = next((name for name in item.any_of if name in here), "")
        names = " or ".join(item.any_of)
        if set_here:
            said.append(
                f"{item.by} usually needs {names}. {set_here} is set on the controller, but trials get only what is "
                f"named: add `secrets: [{set_here}]` or --secret {set_here}."
            )
        else:
            said.append(
                f"{item.by} usually needs {names}, which is neither named nor told by {', '.join(without)}. Set it: "
                f"`aeo secrets set {item.any_of[0]}`, and name it with --secret {item.any_of[0]}."
            )
    return tuple(dict.fromkeys(said))


def used(site: Site) -> dict[str, list[str]]:
    """Names of the evaluations that have not ended, by the secrets they name.

    Raises:
        Unavailable: the store is away.
    """
    found: dict[str, list[str]] = {}
    for id in store.open_ids(site.db):
        with suppress(InputError):  # just being made, or damaged: others tell
            spec = records.header(site.shared.evaluation(id)).spec
            for name in spec.secrets:
                found.setdefault(name, []).append(spec.name)
    return found
