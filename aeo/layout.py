"""Paths below the runtime roots. Nothing else joins these names.

On the controller::

    <shared_root>/
    ├── controller.lock                held by the running controller
    ├── token                          the API token (0600), when none was given
    ├── web-secret                     signs the pages' sessions (0600)
    ├── users.json                     named users and the hashes of their tokens (0600)
    ├── credentials.json               what each worker may reach, and digests of its passwords (0600)
    ├── meters.json                    what monitoring counts; may be deleted
    ├── secrets.json                   secrets, encrypted (0600); their key is elsewhere
    ├── notices.json                   what was told by webhook and e-mail, and what waits to be (0600)
    ├── summaries.sqlite               what tables are read from (0600); derived, may be deleted
    ├── redis/                         the embedded server (0700)
    ├── mark                           random; tells this folder from another of the same name
    ├── rsync/                         the controller's own rsync daemon (0700), see `aeo.rsyncd.modules`
    ├── evaluations/<id>/
    │   ├── evaluation.json            spec and plan header, written once
    │   ├── trials.jsonl               the planned trials, one a line, written once before it
    │   ├── carried.jsonl              the rows it took over from an earlier evaluation, if it did
    │   ├── events.jsonl               what happened, append-only
    │   ├── keep                       never prune it; only where somebody said so
    │   └── superseded/<trial>.<token>/   late second results, kept
    ├── pruned/<id>/                   evaluations that are being removed, and tasks.<digest>/
    ├── tasks/<digest>/<name>/         content that travels to workers; what a configuration names: asset/<name>
    ├── datasets.json                  the configured datasets
    ├── datasets/<name>/<task>/        downloaded ones
    │         └── (beside them) .state/<name>/   their downloads, what was read of their tasks
    ├── inbox/<id>/<trial>.<token>/    pushed, not yet committed
    │         └── (beside it) <trial>.<token>.json   its manifest, pushed last
    │         └── (beside it) <trial>.<token>.redacting/   secrets are being taken out of it
    ├── inbox/<id>/live/<trial>.<token>/   what a run that somebody watches has written so far
    ├── workers/<id>/                  roots of the workers that `aeo up` and `aeo demo` start
    ├── provisioned/<id>/              machines that `aeo provision` made workers of, see `aeo.provision.record`
    ├── wheels/                        packages that travel to them; may be deleted
    └── jobs/<name>/                   merged jobs (or <jobs_dir>/<name>/)
              └── (beside them) .carried.<id>/   results being taken over by a new evaluation

On a worker::

    <local_root>/
    ├── worker.json                    the instance's identity; locked by the running worker
    ├── seat                           by which lock, on which running kernel, the last worker had this root
    ├── tasks/<digest>/<name>/
    │        └── .ahead                fetched before any trial needed it; gone with the first
    ├── evaluations/<id>/              fetched evaluation.json and trials.jsonl
    ├── batches/<batch>/               a session's scratch, and <trial>.<token>/ while it runs; assets/: its own copies
    ├── outbox/<id>/<trial>.<token>/   finished, not yet pushed; manifest beside it
    ├── kept/<id>/<trial>.<token>/     files of results that were too large to travel
    └── aside/                         what is being removed
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aeo.core.errors import InputError
from aeo.core.names import check_name

#: Folder of an evaluation's inbox; no run's folder has this name, as theirs have a dot.
LIVE = "live"


def inside(root: Path, *parts: str) -> Path:
    """Join names that came from outside below ``root``.

    Raises:
        InputError: a part is no plain name, or the result leaves ``root`` (through a link).
    """
    path = root.joinpath(*(check_name(part, "path component") for part in parts))
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{'/'.join(parts)!r} leads out of its folder.")
    return path


def run_name(trial: str, token: str) -> str:
    """Name of the folder of one run of a trial."""
    return f"{trial}.{token}"


@dataclass(frozen=True)
class Shared:
    """The controller's runtime root, also seen from a worker as paths relative to the transfer address."""

    root: Path
    jobs_dir: Path

    @property
    def lock(self) -> Path:
        return self.root / "controller.lock"

    def worker(self, id: str) -> Path:
        return inside(self.root / "workers", id)

    @property
    def provisioned(self) -> Path:
        return self.root / "provisioned"

    def machine(self, id: str) -> Path:
        return inside(self.provisioned, id)

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def web_secret(self) -> Path:
        return self.root / "web-secret"

    @property
    def credentials(self) -> Path:
        return self.root / "credentials.json"

    @property
    def users(self) -> Path:
        return self.root / "users.json"

    @property
    def summaries(self) -> Path:
        return self.root / "summaries.sqlite"

    @property
    def meters(self) -> Path:
        return self.root / "meters.json"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def notices(self) -> Path:
        return self.root / "notices.json"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def mark(self) -> Path:
        return self.root / "mark"

    @property
    def rsync(self) -> Path:
        return self.root / "rsync"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    def evaluation(self, id: str) -> Path:
        return inside(self.evaluations, id)

    def unborn(self, id: str) -> Path:
        """The folder of an evaluation that is just being made."""
        return inside(self.evaluations, f"new.{id}")

    def born(self) -> list[Path]:
        """The folders of all evaluations, those aside that are just being made."""
        return sorted(path for path in self.evaluations.iterdir() if path.is_dir() and path.name[:4] != "new.")

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Held by whoever makes an evaluation, so that nobody takes a half-made one for a left-over."""
        with (self.root / "submit.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    @contextmanager
    def nobody_submits(self) -> Iterator[bool]:
        """Keep new evaluations from being made meanwhile; gives False when one is being made now."""
        with (self.root / "submit.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def keep_mark(self, id: str) -> Path:
        return self.evaluation(id) / "keep"

    @property
    def pruned(self) -> Path:
        return self.root / "pruned"

    def events(self, id: str) -> Path:
        return self.evaluation(id) / "events.jsonl"

    def superseded(self, id: str, trial: str, token: str) -> Path:
        return inside(self.evaluation(id) / "superseded", run_name(trial, token))

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def task(self, digest: str, name: str) -> Path:
        return inside(self.tasks, digest, name)

    @property
    def datasets_file(self) -> Path:
        return self.root / "datasets.json"

    def dataset(self, name: str) -> Path:
        return inside(self.root / "datasets", name)

    def dataset_state(self, name: str) -> Path:
        return inside(self.root / "datasets" / ".state", name)

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    def arrived(self, id: str, trial: str, token: str) -> Path:
        return inside(self.inbox, id, run_name(trial, token))

    def live(self, id: str, trial: str, token: str) -> Path:
        return inside(self.inbox, id, LIVE, run_name(trial, token))

    def job(self, name: str) -> Path:
        return inside(self.jobs_dir, name)

    def carried(self, id: str) -> Path:
        """Where results that an evaluation takes over are made ready, on the disk of its job."""
        return self.jobs_dir / f".carried.{check_name(id, 'evaluation')}"


@dataclass(frozen=True)
class Local:
    """A worker's own root."""

    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "worker.json"

    @property
    def seat(self) -> Path:
        return self.root / "seat"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def task(self, digest: str, name: str) -> Path:
        return inside(self.tasks, digest, name)

    def ahead_mark(self, digest: str) -> Path:
        return inside(self.tasks, digest) / ".ahead"

    def evaluation(self, id: str) -> Path:
        return inside(self.root / "evaluations", id)

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def all_kept(self) -> Path:
        return self.root / "kept"

    @property
    def aside(self) -> Path:
        return self.root / "aside"

    @property
    def batches(self) -> Path:
        return self.root / "batches"

    def batch(self, batch: str) -> Path:
        return inside(self.batches, batch)

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    def finished(self, id: str, trial: str, token: str) -> Path:
        return inside(self.outbox, id, run_name(trial, token))

    def kept(self, id: str, trial: str, token: str) -> Path:
        return inside(self.root / "kept", id, run_name(trial, token))


def redacting(run_dir: Path) -> Path:
    """Beside a run's folder in the inbox: there while, and after, secrets are taken out of it."""
    return run_dir.with_name(run_dir.name + ".redacting")


def manifest_of(run_dir: Path) -> Path:
    """The manifest beside a run's folder, in an outbox or the inbox."""
    return run_dir.with_name(run_dir.name + ".json")
