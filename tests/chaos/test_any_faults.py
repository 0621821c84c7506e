"""Many trials, four workers, a fault every second or two, drawn by a seed which is printed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import Run, Stage

WORKERS = ("a", "b", "c", "d")
TRIALS = 300
#: Seconds between two faults.
PAUSES = (1.0, 3.0)
#: Faults of one run, and how many of them end the control process, which is started again ever later: half a second
#: after its first end, half a minute after its seventh within a minute.
FAULTS, CONTROL_ENDS = 16, 2
#: Why runs may be repeated: what the draw may have done to them.
WHY = "; what is frozen looks dead, and what finds a wiped store late has lost its trial"
#: Faults that make it unavoidable.
BLURRING = ("freeze_worker", "flush")


class Draw:
    """Draws faults, and undoes those that would else last."""

    def __init__(self, stage: Stage, run: Run, seed: int):
        self.stage, self.run = stage, run
        self.random = random.Random(seed)
        self.story: list[str] = []
        #: When a frozen worker goes on.
        self.frozen: dict[str, float] = {}
        self.control_ends = 0

    def strike(self) -> None:
        """The next fault."""
        kinds: list[tuple[Callable[[], object], int]] = [
            (self.kill_worker, 4),
            (self.freeze_worker, 3),
            (self.kill_control, 2 if self.control_ends < CONTROL_ENDS else 0),
            (self.end_server, 2),
            (self.flush, 1),
            (self.send_again, 2),
        ]
        chosen = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        self.story.append(f"{time.time() - self.run.struck:.1f} s: {chosen.__name__}")
        chosen()

    def kill_worker(self) -> None:
        id = self.random.choice(WORKERS)
        self.frozen.pop(id, None)
        faults.kill_all(self.stage, id)
        self.stage.start_worker(id)

    def freeze_worker(self) -> None:
        id = self.random.choice(WORKERS)
        faults.freeze(self.stage, id)
        self.frozen[id] = time.monotonic() + self.random.uniform(0.5, 8.0)

    def kill_control(self) -> None:
        self.control_ends += 1
        control = self.stage.role("control")
        faults.kill([control, *control.children(recursive=True)])

    def end_server(self) -> None:
        faults.stop_server(self.stage, self.random.choice([signal.SIGTERM, signal.SIGKILL]))

    def flush(self) -> None:
        faults.flush(self.stage)

    def send_again(self) -> None:
        faults.send_again(self.run)

    def wake(self, *, all: bool = False) -> None:
        """Let go on what was frozen for long enough."""
        for id in [id for id, until in self.frozen.items() if all or time.monotonic() > until]:
            del self.frozen[id]
            faults.freeze(self.stage, id, signal.SIGCONT)


def play(stage: Stage, seed: int, judge: Judge) -> None:
    run = stage.submit(trials=TRIALS, seconds={"min": 0.05, "max": 0.65, "seed": seed}, max_requeues=50)
    print(f"seed {seed}")  # noqa: T201
    draw = Draw(stage, run, seed)
    last = run.struck
    while len(run.results()) < TRIALS * 0.9 and len(draw.story) < FAULTS:
        pause = time.monotonic() + draw.random.uniform(*PAUSES)
        while time.monotonic() < pause:
            draw.wake()
            time.sleep(0.05)
        last = time.time()
        try:
            draw.strike()
        except Exception as error:  # struck while what it needs is away from the fault before
            draw.story[-1] += f" (not done: {type(error).__name__})"
    draw.wake(all=True)
    print("\n".join(draw.story))  # noqa: T201
    assert run.closed() == "succeeded"
    end = run.since(["closed"]) or 0.0
    note = f"{len(draw.story)} faults, ended {end - (last - run.struck):.1f} s after the last"
    blurred = sum(name in line for line in draw.story for name in BLURRING)
    row = judge(
        run,
        f"random faults, seed {seed}",
        seconds=None,
        twice=note + WHY if blurred else "",
        note="" if blurred else note,
    )
    # A worker has two runs at most; a wiped store is forgotten by all.
    assert row.run_twice <= 2 * len(WORKERS) * blurred
    stage.check_by_doctor(run)


@pytest.mark.parametrize("seed", range(1, 6))
def test_random_faults(stage: Stage, seed: int, judge: Judge) -> None:
    play(stage, seed, judge)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1001, 1201))
def test_soak(stage: Stage, seed: int, judge: Judge) -> None:
    play(stage, seed, judge)
