"""Running again what did not go well: a new evaluation that takes over the good results of an earlier one.

The earlier one stays as it is. The new one is planned anew, from the same configuration or an edited one. Its job
folder begins with copies of the good trials; only the others are shared out. `aeo.core.rerun` says which are which.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aeo import assets, drafts, evaluations, executors, records, redaction, submission
from aeo.core import rerun as core
from aeo.core.errors import AeoError, Conflict, InputError, Unavailable
from aeo.core.model import Evaluation, Plan, PlannedTrial, Spec, TrialRow
from aeo.core.rerun import Choice, Match, Planned, Ran
from aeo.evaluations import Inherit, Legacy, Submitted
from aeo.executors import Executor
from aeo.executors.carrying import Carrier, carrier_of
from aeo.layout import inside
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import trials
from aeo.store.evaluations import EvaluationStatus
from aeo.submission import Submission
from aeo.transfer import copy, tree

log = logging.getLogger(__name__)

#: Reasons told one by one.
_REASONS = 20


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An evaluation that has ended, and what came out of it."""

    evaluation: Evaluation
    rows: Mapping[str, TrialRow]

    @property
    def called(self) -> str:
        return f"{self.evaluation.spec.name} ({self.evaluation.id})"

    def folder(self, trial: str) -> Path:
        return inside(Path(self.evaluation.job_dir), trial)


def rerun(
    site: Site, id_or_name: str, choice: Choice, request: Submission | None = None, *, owner: str = ""
) -> Submitted:
    """Submit an evaluation anew and take over its good results: those that are not chosen.

    ``request`` is the configuration, which may be edited; one without any text or mapping means the earlier one's.
    Trials that it makes into others are run, whatever the earlier result; the warnings tell how many, and why.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it has not ended, or the new one's job folder exists.
        InputError: as for `evaluations.submit`; nobody ended as chosen; or nothing would be left to run.
        Unavailable: the store or the executor is away, or the results cannot be copied now.
    """
    request, inherit = prepared(site, id_or_name, choice, request)
    return evaluations.submit(site, request, owner=owner, inherit=inherit)


def prepared(
    site: Site, id_or_name: str, choice: Choice, request: Submission | None = None
) -> tuple[Submission, Inherit]:
    """What is to be submitted, or checked, for a rerun, and what it takes over.

    Raises:
        As `rerun`, as far as it does not concern the new configuration.
    """
    earlier = _earlier(site, store.find(site.db, id_or_name))
    _check_choice(earlier, choice)

    def inherit(executor: Executor, spec: Spec, plan: Plan) -> Legacy:
        return _legacy(site, earlier, choice, executor, spec, plan)

    return _asked(site, earlier, request or Submission()), inherit


def _earlier(site: Site, status: EvaluationStatus) -> Earlier:
    if not status.state.final:
        raise Conflict(
            f"evaluation {status.name} is {status.state.value}.",
            field="id",
            fix="Only one that has ended is rerun; cancel it, or wait for its end.",
        )
    evaluation = records.read(site.shared.evaluation(status.id)).whole()
    if not Path(evaluation.job_dir).is_dir():
        raise InputError(
            f"the job folder of {status.name} is gone: {evaluation.job_dir}.",
            field="id",
            fix="Bring it back, or submit the same anew.",
        )
    return Earlier(
        evaluation=evaluation, rows={row.summary.trial: row for row in trials.rows_since(site.db, status.id, 0)}
    )


def _check_choice(earlier: Earlier, choice: Choice) -> None:
    summaries = [row.summary for row in earlier.rows.values()]
    known = {error for summary in summaries for error in (summary.error_type, *summary.error_types) if error}
    for error in sorted(choice.errors - known):
        raise InputError(
            f"no trial of {earlier.evaluation.spec.name} ended with {error!r}.",
            field="error",
            fix=f"It had: {', '.join(sorted(known)) or 'no errors'}.",
        )


def _asked(site: Site, earlier: Earlier, request: Submission) -> Submission:
    """The configuration to submit, under a name that is not the earlier one's."""

    def taken(name: str) -> bool:
        return site.shared.job(name).exists()

    if not request.text and request.config is None:
        request = replace(request, text=drafts.again(earlier.evaluation, taken=taken), file_name="")
    try:
        spec, _file = submission.read(request)
        own = spec.name or executors.load(spec.executor).config_name(spec.config)
    except InputError:
        # Whoever submits or checks it tells what is wrong, and where.
        return request
    if own and own != earlier.evaluation.spec.name:
        return request
    name = drafts.next_name(earlier.evaluation.spec.name, taken)
    return replace(request, options={**request.options, "name": name}) if name else request


def _legacy(site: Site, earlier: Earlier, choice: Choice, executor: Executor, spec: Spec, plan: Plan) -> Legacy:
    if executor.name != earlier.evaluation.spec.executor:
        was = earlier.evaluation.spec.executor
        raise InputError(
            f"{earlier.called} was run by {was}: its results are none of {executor.name}.", field="executor"
        )
    carrier = carrier_of(executor)
    if carrier is None:
        raise InputError(
            f"results of the executor {executor.name} cannot be taken over.", field="executor", fix="Submit it anew."
        )
    match = core.match(_ran(earlier, carrier), _planned(carrier, spec, plan), choice)
    match = match.without(_unreadable(executor, earlier, match))
    if not match.run:
        raise InputError(
            f"nothing is left to run: every trial has a good result in {earlier.called}.",
            fix="Choose the errors or outcomes to run again.",
        )
    new = {trial.name: trial for trial in plan.trials}

    def hand_over(evaluation: Evaluation, job_dir: Path) -> Sequence[TrialRow]:
        moves = [(new[name], old) for name, old in match.carried.items()]
        return _hand_over(site, earlier, executor, carrier, evaluation, job_dir, moves)

    return Legacy(
        parent=earlier.evaluation.id,
        trials=frozenset(match.carried),
        warnings=tuple(_warnings(earlier, match, plan)),
        hand_over=hand_over,
    )


def _planned(carrier: Carrier, spec: Spec, plan: Plan) -> list[Planned]:
    identities = carrier.identities(spec, plan)
    return [Planned(trial=trial, identity=one) for trial, one in zip(plan.trials, identities, strict=True)]


def _ran(earlier: Earlier, carrier: Carrier) -> list[Ran]:
    found = _planned(carrier, earlier.evaluation.spec, earlier.evaluation.plan)
    return [Ran(trial=item.trial, identity=item.identity, row=earlier.rows.get(item.trial.name)) for item in found]


def _unreadable(executor: Executor, earlier: Earlier, match: Match) -> dict[str, str]:
    """New trials whose earlier result is not there any more, or none; and why they are run."""
    planned = {trial.name: trial for trial in earlier.evaluation.plan.trials}
    refused = {}
    for new, old in match.carried.items():
        folder = earlier.folder(old)
        if not folder.is_dir() or folder.is_symlink():
            refused[new] = "the folder of its result is gone"
        elif not _reads(executor, planned[old], folder):
            refused[new] = "its result cannot be read any more"
    return refused


def _reads(executor: Executor, trial: PlannedTrial, folder: Path) -> bool:
    try:
        executor.summarise(trial, folder)
    except InputError as error:
        log.warning("%s is not taken over: %s", folder, error)
        return False
    return True


def _warnings(earlier: Earlier, match: Match, plan: Plan) -> Iterator[str]:
    total, before = len(plan.trials), earlier.evaluation.plan.version
    yield f"{len(match.carried)} of {_trials(total)} keep the result from {earlier.called}."
    for path in assets.changed(earlier.evaluation.plan, plan):
        yield f"{path} was read again, and is not what it was in {earlier.called}."
    reasons = Counter(match.run.values()).most_common()
    for reason, count in reasons[:_REASONS]:
        yield f"{_trials(count)} to run: {reason}."
    if len(reasons) > _REASONS:
        yield f"{_trials(sum(count for _, count in reasons[_REASONS:]))} to run for other reasons."
    if match.left:
        yield f"Left behind: {_trials(len(match.left))} with a good result, as nothing like that is planned now."
    if match.carried and before != plan.version:
        name = earlier.evaluation.spec.executor
        yield f"The results kept are of {name} {before or '?'}, the others will be of {name} {plan.version or '?'}."


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def _hand_over(
    site: Site,
    earlier: Earlier,
    executor: Executor,
    carrier: Carrier,
    evaluation: Evaluation,
    job_dir: Path,
    moves: Sequence[tuple[PlannedTrial, str]],
) -> list[TrialRow]:
    """Copy results into a new job; each enters it by one rename, as every result does."""
    ready = site.shared.carried(evaluation.id)
    redactor = hiding.redactor(site)
    rows = []
    try:
        for trial, old in moves:
            source, draft = earlier.folder(old), ready / trial.name
            content = tree.read(source, odd_names=True)
            copy.folder(source, draft, content)
            for name in redaction.holding(redactor, draft, content.files):
                redaction.rewrite(redactor, draft / name, ready / "draft")
            final = inside(job_dir, trial.name)
            _rewrite(executor, carrier, evaluation, trial, draft, final)
            draft.rename(final)
            rows.append(_row(earlier, trial, old))
    except OSError as error:
        raise Unavailable(f"The results of {earlier.called} cannot be copied now: {error}") from error
    finally:
        shutil.rmtree(ready, ignore_errors=True)
    return rows


def _rewrite(
    executor: Executor, carrier: Carrier, evaluation: Evaluation, trial: PlannedTrial, draft: Path, final: Path
) -> None:
    try:
        carrier.carry(evaluation, trial, draft, str(final))
        executor.summarise(trial, draft)
    except (AeoError, OSError):
        raise
    except Exception as error:
        # A plug-in's fault, or a result with numbers that JSON does not have.
        raise InputError(f"its result cannot be taken over: {error}"[:500], field=trial.name) from error


def _row(earlier: Earlier, trial: PlannedTrial, old: str) -> TrialRow:
    row = earlier.rows[old]
    return replace(
        row,
        summary=replace(row.summary, trial=trial.name, labels=trial.labels),
        origin=row.origin or f"{earlier.evaluation.id}/{old}",
    )
