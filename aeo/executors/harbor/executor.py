"""Harbor as an executor: Harbor plans, runs and aggregates; this joins it to the platform."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from aeo.core.model import Evaluation, Plan, PlannedTrial, Spec, TrialSummary
from aeo.executors import Command, JobProgress, SubmittedFile, TrialContext, Wanted
from aeo.executors.harbor import failure, form, job, leftovers, planning, program, secrets, summary
from aeo.executors.harbor import views as trial_views
from aeo.executors.harbor.assets import HarborAssets
from aeo.executors.harbor.care import HarborCare
from aeo.executors.harbor.carrying import HarborCarrier
from aeo.executors.harbor.datasets import HarborDatasets
from aeo.executors.harbor.python import harbor_python
from aeo.executors.harbor.session import HarborSession
from aeo.executors.harbor.supplies import HarborSupplies
from aeo.executors.views import TrialFiles


class HarborExecutor:
    """See `aeo.executors.Executor`."""

    name = "harbor"
    form = form.form
    datasets = HarborDatasets()
    carrier = HarborCarrier()
    assets = HarborAssets()
    care = HarborCare()
    supplies = HarborSupplies()

    def version(self) -> str:
        """Harbor's version here; gets Harbor if it is missing."""
        return harbor_python().version

    def config_name(self, config: Mapping[str, Any]) -> str:
        """``job_name`` of a Harbor job configuration."""
        name = config.get("job_name")
        return name if isinstance(name, str) else ""

    def plan(self, spec: Spec, file: SubmittedFile) -> Plan:
        """Resolve a Harbor job configuration into trials with Harbor's own planner."""
        return planning.plan(spec, file)

    def wanted(self, spec: Spec, plan: Plan | None) -> Iterator[Wanted]:
        """What ``env`` and headers refer to, and the key that Harbor looks for by an agent's model."""
        header = plan.header if plan else {}
        # The env file brings these along.
        given = set(header.get("env_names", ()))
        return (one for one in secrets.wanted(spec.config, header) if not given & set(one.any_of))

    def open(self, evaluation: Evaluation, workdir: Path) -> HarborSession:
        """Open a session; its driver is being started while the first trial is claimed and its task is fetched."""
        session = HarborSession(evaluation, workdir)
        session.warm()
        return session

    def max_starting(self, evaluation: Evaluation) -> int:
        """As many as Harbor itself runs at once by default, where each has a Docker build: more only fight over it."""
        environment = evaluation.spec.config.get("environment") or {}
        if not isinstance(environment, Mapping):
            return 4
        # An environment that is given by its class has no type, and is not Docker.
        kind = environment.get("type") or environment.get("import_path") or "docker"
        return 4 if kind == "docker" else 0

    def viewer(self, jobs_dir: Path, host: str, port: int) -> Command:
        """``harbor view``."""
        python = str(harbor_python().path)
        argv = (
            python,
            "-m",
            "harbor.cli.main",
            "view",
            str(jobs_dir),
            "--host",
            host,
            "--port",
            str(port),
            "--no-build",
        )
        return Command(argv=argv, env=program.environment(), request={})

    def fail(
        self, evaluation: Evaluation, trial: PlannedTrial, context: TrialContext, error_type: str, message: str
    ) -> None:
        """Write the folder of a trial that got no result of its own."""
        failure.fail(evaluation, trial, context, error_type, message)

    def summarise(self, trial: PlannedTrial, trial_dir: Path) -> TrialSummary:
        """Read a finished trial in the platform's words."""
        return summary.summarise(trial, trial_dir)

    def views(self, names: Collection[str]) -> TrialFiles:
        """Say what each of a trial's files is."""
        return trial_views.views(names)

    def start_job(self, evaluation: Evaluation, job_dir: Path) -> None:
        """Write the job's own files."""
        job.start_job(evaluation, job_dir)

    def refresh_job(self, evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
        """Bring the running job's ``result.json`` up to date."""
        job.refresh_job(evaluation, job_dir, progress)

    def merge(self, evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
        """Close the job with Harbor's own aggregate."""
        job.merge(evaluation, job_dir, progress)

    def sweep(self, workdir: Path) -> None:
        """See `aeo.executors.Executor.sweep`."""
        leftovers.sweep(workdir)
