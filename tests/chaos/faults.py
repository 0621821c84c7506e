"""Faults: each is one call that breaks something real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from chaos.stage import Run, Stage

from aeo import dispatch
from aeo.config import Config
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState


def kill_main(stage: Stage, worker: str) -> list[psutil.Process]:
    """Kill -9 a worker's main process only; returns what it had started."""
    program = stage.workers[worker]
    family = program.family()
    program.process.kill()
    program.process.wait()
    stage.died(worker)
    return family


def kill_all(stage: Stage, worker: str) -> None:
    """Kill -9 a worker and all it started, as a machine that loses its power."""
    program = stage.workers[worker]
    kill([program.process, *program.family()])
    program.process.wait()
    stage.died(worker)


def kill(processes: list[psutil.Process]) -> None:
    """Kill -9."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def freeze(stage: Stage, worker: str, number: signal.Signals = signal.SIGSTOP) -> None:
    """Stop (or continue) a worker and all it started."""
    program = stage.workers[worker]
    with suppress(psutil.NoSuchProcess):
        for process in (program.process, *program.family()):
            process.send_signal(number)


def waits_for_messages(stage: Stage, *workers: str) -> bool:
    """Whether the server still holds a blocking call of these workers open (CLIENT LIST, flag ``b``)."""
    ports = {
        str(connection.laddr.port)
        for worker in workers
        for process in (stage.workers[worker].process, *stage.workers[worker].family())
        for connection in psutil.Process(process.pid).net_connections("tcp")
    }
    with stage.db() as db:
        clients = db.client.client_list()
    return any("b" in client["flags"] and client["addr"].rpartition(":")[2] in ports for client in clients)


def kill_controller(stage: Stage, *, server: bool = False) -> None:
    """Kill -9 the controller with its children, the embedded server only if told so."""
    main = stage.controller.process
    kept = set() if server else {stage.server().pid}
    kill([process for process in (main, *stage.controller.family()) if process.pid not in kept])
    if server:
        kill([stage.server()])
    main.wait()


def stop_server(stage: Stage, number: signal.Signals, *, wipe: bool = False) -> float:
    """End the embedded server, which its controller is to start again; returns when it was gone."""
    server = stage.server()
    server.send_signal(number)
    end = time.monotonic() + 30
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.01)
    if wipe:
        shutil.rmtree(stage.shared / "redis" / "appendonlydir", ignore_errors=True)
    return time.time()


def flush(stage: Stage) -> None:
    """FLUSHALL."""
    with stage.db() as db:
        db.client.flushall()


def send_again(run: Run) -> int:
    """Deliver each message of an evaluation's batches that began once more; returns how many."""
    with run.stage.db() as db:
        site = Site(
            config=Config(shared_root=run.stage.shared, broker_url=db.url),
            shared=Shared(run.stage.shared, run.stage.jobs),
            db=db,
        )
        begun = [status.batch for status in store.batches(db, run.id) if status.state is BatchState.STARTED]
        for batch in begun:
            dispatch.resend(site, batch)
    return len(begun)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "aeo-chaos", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this user may."""
    with suppress(subprocess.CalledProcessError, OSError), small_disk(folder, 1):
        return True
    return False


def fill(folder: Path) -> Path:
    """Leave no byte free; returns the file to delete."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while os.write(file.fileno(), b"\0" * size):
                    pass
    return path
