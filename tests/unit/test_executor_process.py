from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import eventually

from aeo.executors.process import Child, kill_marked


def start(tmp_path: Path, script: str, *, limit: int = 1_000_000, grace: float = 5.0, **env: str) -> Child:
    return Child(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **env},
        stdout=tmp_path / "out",
        stderr=tmp_path / "err",
        limit=limit,
        grace_seconds=grace,
    )


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_output_and_exit_code_are_kept(tmp_path):
    end = start(tmp_path, "echo out; echo err >&2; exit 3").wait(10)
    assert (end.code, end.timed_out, end.stopped, end.dropped) == (3, False, "", 0)
    assert (tmp_path / "out").read_text() == "out\n"
    assert (tmp_path / "err").read_text() == "err\n"


def test_any_thread_may_run_one(tmp_path):
    ends = []
    thread = threading.Thread(target=lambda: ends.append(start(tmp_path, "exit 4").wait(10)))
    thread.start()
    thread.join(20)
    assert [end.code for end in ends] == [4]


def test_a_signal_shows_as_a_negative_code(tmp_path):
    assert start(tmp_path, "kill -USR1 $$").wait(10).code == -signal.SIGUSR1


def test_output_beyond_the_limit_keeps_its_start_and_its_end(tmp_path):
    end = start(tmp_path, "seq 1 100000", limit=1000).wait(20)
    kept = (tmp_path / "out").read_text()
    assert kept.startswith("1\n2\n")
    assert kept.endswith("99999\n100000\n")
    assert f"{end.dropped} bytes are left out" in kept
    assert len(kept) < 70_000


def test_the_deadline_ends_the_whole_group(tmp_path):
    began = time.monotonic()
    end = start(tmp_path, "sleep 60 & echo $! > pid; wait").wait(0.3)
    assert end.timed_out
    assert end.code == -signal.SIGTERM
    assert time.monotonic() - began < 5
    # Not at once: the end of its output is seen when the kernel closes its files, a moment before it is gone.
    eventually(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    began = time.monotonic()
    end = start(tmp_path, "trap '' TERM; while :; do sleep 0.05; done", grace=0.3).wait(0.1)
    assert end.code == -signal.SIGKILL
    assert 0.4 <= time.monotonic() - began < 5


def test_stop_from_another_thread_is_at_once(tmp_path):
    child = start(tmp_path, "echo ready; sleep 60")
    timer = threading.Timer(0.1, child.stop, ["enough"])
    timer.start()
    began = time.monotonic()
    end = child.wait(60)
    timer.join()
    assert (end.stopped, end.timed_out) == ("enough", False)
    assert time.monotonic() - began < 5
    child.stop("again")  # it has ended: nothing happens


def test_stop_before_wait_counts(tmp_path):
    child = start(tmp_path, "sleep 60")
    child.stop("early")
    assert child.wait(60).stopped == "early"


def test_what_the_child_leaves_behind_dies_with_it(tmp_path):
    start(tmp_path, "sleep 60 & echo $! > pid; exit 0").wait(10)
    eventually(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_an_escaped_holder_of_the_pipe_does_not_hold_the_wait(tmp_path):
    began = time.monotonic()
    script = "setsid sh -c ': > away; exec sleep 60' & while [ ! -e away ]; do sleep 0.01; done"
    end = start(tmp_path, script, MARK_TEST="escaped").wait(30)
    assert end.code == 0
    assert time.monotonic() - began < 5
    assert kill_marked(lambda value: value == "escaped", "MARK_TEST")
    eventually(lambda: not kill_marked(lambda value: value == "escaped", "MARK_TEST"))


def test_a_missing_program_leaves_nothing_open(tmp_path):
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        Child(
            ["no-such-program"],
            cwd=tmp_path,
            env={},
            stdout=tmp_path / "out",
            stderr=tmp_path / "err",
            limit=1,
            grace_seconds=1,
        )
    assert descriptors() == before


def test_no_descriptors_are_leaked(tmp_path):
    before = descriptors()
    for _ in range(3):
        start(tmp_path, "echo x").wait(10)
    assert descriptors() == before


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_child_dies_with_its_parent(tmp_path):
    program = (
        "import pathlib, sys\n"
        "from aeo.executors.process import Child\n"
        "p = pathlib.Path(sys.argv[1])\n"
        "Child(['sh', '-c', 'echo $$ > pid; exec sleep 60'], cwd=p, env={'PATH': sys.argv[2]}, stdout=p / 'out',"
        " stderr=p / 'err', limit=9, grace_seconds=1).wait(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), os.environ["PATH"]])
    try:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not alive(pid))
