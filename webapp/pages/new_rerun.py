"""What of an earlier evaluation is to be run again, on the page of a new one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aeo import checks, evaluations, progress, rerun, summaries
from aeo.checks import Check
from aeo.core.errors import InputError
from aeo.core.model import Outcome
from aeo.core.names import check_name
from aeo.core.rerun import Choice
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.evaluations import EvaluationStatus
from aeo.submission import Submission

#: Outcomes that can be chosen; a cancelled trial is run in any case, and who wants the scored ones starts anew.
OUTCOMES = (Outcome.INFRA_ERROR, Outcome.INVALID)


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Which trials of an earlier evaluation are to be run again; none when there is no id."""

    id: str = ""
    name: str = ""
    errors: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """Something that can be chosen."""

    value: str
    count: int
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Choices:
    """All that can be chosen."""

    errors: tuple[Item, ...]
    outcomes: tuple[Item, ...]
    #: Trials that are run whatever is chosen.
    unfinished: int


def read(site: Site, id: str, errors: Iterable[str], outcomes: Iterable[str]) -> Rerun:
    """What is asked for; nothing when there is no id.

    Raises:
        InputError: there is no such evaluation.
    """
    if not id:
        return Rerun()
    status = store.find(site.db, check_name(id, "evaluation", field="rerun"))
    return Rerun(id=status.id, name=status.name, errors=tuple(errors), outcomes=tuple(outcomes))


def choices(site: Site, asked: Rerun) -> Choices | None:
    """What there is to choose from; None when nothing is rerun."""
    if not asked.id:
        return None
    status = progress.found(site, asked.id)
    counts = dict.fromkeys(asked.errors, 0)
    for error in summaries.errors(site.book, status.id):
        counts[error.type] = counts.get(error.type, 0) + error.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Choices(
        errors=tuple(Item(type, count, type in asked.errors) for type, count in ordered),
        outcomes=tuple(_outcomes(status, asked)),
        unfinished=status.total - status.done + status.outcomes[Outcome.CANCELLED],
    )


def _outcomes(status: EvaluationStatus, asked: Rerun) -> Iterable[Item]:
    for outcome in OUTCOMES:
        chosen = outcome.value in asked.outcomes
        if status.outcomes[outcome] or chosen:
            yield Item(outcome.value, status.outcomes[outcome], chosen)


def check(site: Site, text: str, asked: Rerun) -> Check:
    """What would come of it.

    Raises:
        InputError: the earlier evaluation cannot be rerun so.
    """
    if not asked.id:
        return checks.check(site, Submission(text=text))
    request, inherit = rerun.prepared(site, asked.id, _choice(asked), Submission(text=text))
    return checks.check(site, request, inherit=inherit)


def submit(site: Site, text: str, asked: Rerun, *, owner: str) -> str:
    """Make the evaluation; returns its id.

    Raises:
        InputError: it cannot be run as it is.
    """
    if not asked.id:
        return evaluations.submit(site, Submission(text=text), owner=owner).evaluation.id
    return rerun.rerun(site, asked.id, _choice(asked), Submission(text=text), owner=owner).evaluation.id


def _choice(asked: Rerun) -> Choice:
    try:
        outcomes = frozenset(map(Outcome, asked.outcomes))
    except ValueError:
        raise InputError("is no outcome.", field="outcome") from None
    return Choice(errors=frozenset(asked.errors), outcomes=outcomes)
