"""How fast pages are with 200 evaluations, one of them of 20,000 trials: ``python tests/benchmarks/pages.py``.

Fills a controller's root of its own, starts the real web process (gunicorn) on it, and asks as a browser does: signed
in, over one connection. Prints a table and, with ``--json``, writes the figures. Ends with 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent))

import seeds

from aeo.config import Config
from aeo.embedded import server
from aeo.site import open_site

TOKEN = "benchmark-token"
#: Bytes, compressed: what the scripts of a page may be in all, the chart library not counted.
SCRIPTS = 400_000
#: Requests before those that count.
WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and the most its median may be."""

    name: str
    path: str
    #: Milliseconds; None is only shown.
    target: float | None = None
    headers: Mapping[str, str] | None = None
    #: Whether a result comes in before each time it is asked: what was summed up before is then of no use.
    news: bool = False


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured: milliseconds, and kilobytes as sent."""

    name: str
    median: float
    p95: float
    #: Of the web process for one request, in the mean: on a busy machine this still says what a page costs.
    processor: float
    kilobytes: float
    target: float | None


def questions(large: str) -> list[Question]:
    """Every measured request; ``large`` is the id of the largest evaluation."""
    page = f"/evaluations/{large}"
    part = {"HX-Request": "true"}
    return [
        Question(name="dashboard", path="/", target=150),
        Question(name="dashboard, searched", path="/?search=nightly-1", target=150),
        Question(name="evaluation of 20,000, first view", path=page, target=150),
        Question(name="the same, just after a result", path=page, target=150, news=True),
        Question(name="trials, first page", path=f"{page}?part=trials", headers=part, target=100),
        Question(name="trials, page 300", path=f"{page}?part=trials&offset=15000", headers=part, target=100),
        Question(name="trials, sorted", path=f"{page}?part=trials&sort=seconds&descending=1", headers=part, target=100),
        Question(name="trials, searched", path=f"{page}?part=trials&search=task-09", headers=part, target=100),
        Question(name="trials, API", path=f"/api/evaluations/{large}/trials?limit=50", target=100),
        Question(name="evaluation, API", path=f"/api/evaluations/{large}"),
        Question(name="evaluation, live part", path=f"{page}?part=live", headers=part),
        Question(name="heat map data", path=f"/api/evaluations/{large}/heatmap"),
        Question(name="timeline data", path=f"/api/evaluations/{large}/timeline"),
        Question(name="histogram data", path=f"/api/evaluations/{large}/histogram"),
        Question(name="workers", path="/workers"),
        Question(name="datasets", path="/datasets"),
        Question(name="new evaluation", path="/evaluations/new"),
    ]


@contextmanager
def web(root: Path, broker_url: str) -> Iterator[tuple[httpx.Client, int]]:
    """The web process on a free port, as a browser signed in there and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AEO_")},
        **{"AEO_SHARED_ROOT": str(root), "AEO_BROKER_URL": broker_url, "AEO_AUTH_TOKEN": TOKEN, "AEO_PORT": str(port)},
    }
    command = [sys.executable, "-m", "aeo.processes", "web"]
    # It ends when its standard input does.
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
                _await(client, process)
                client.get("/", params={"token": TOKEN}, follow_redirects=True).raise_for_status()
                yield client, process.pid
        finally:
            process.terminate()


def _await(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/api/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the web process does not answer")


def _processor(pid: int) -> float:
    """Seconds the web process, and what it forked, has computed so far."""
    web_process = psutil.Process(pid)
    spent = [process.cpu_times() for process in (web_process, *web_process.children(recursive=True))]
    return sum(one.user + one.system for one in spent)


def ask(client: httpx.Client, pid: int, question: Question, times: int, news: Callable[[], object]) -> Figure | None:
    """Ask again and again, after ``news`` each time where so asked; None when the page is not there."""
    spent: list[float] = []
    answer = client.get(question.path, headers=question.headers)
    if answer.status_code == 404:
        return None
    before = _processor(pid)
    for number in range(times + WARM_UP):
        if question.news:
            news()
        begun = time.perf_counter()
        answer = client.get(question.path, headers=question.headers)
        if number >= WARM_UP:
            spent.append((time.perf_counter() - begun) * 1000)
        if not 200 <= answer.status_code < 300:
            raise SystemExit(f"{question.path} answered {answer.status_code}: {answer.text[:500]}")
    return Figure(
        name=question.name,
        median=round(median(spent), 1),
        p95=round(quantiles(spent, n=20)[-1], 1),
        processor=round((_processor(pid) - before) * 1000 / (times + WARM_UP), 1),
        kilobytes=round(len(answer.content) / 1000, 1),
        target=question.target,
    )


def scripts(client: httpx.Client, path: str) -> dict[str, int]:
    """The scripts of a page with their size, compressed."""
    sources = re.findall(r'<script[^>]*\ssrc="([^"]+)"', client.get(path).text)
    return {source.rpartition("/")[2]: len(gzip.compress(client.get(source).content, 9)) for source in sources}


def _show(figures: Sequence[Figure]) -> None:
    print(f"\n{'':<36}{'median':>10}{'p95':>10}{'processor':>11}{'target':>10}{'kB':>10}")
    for one in figures:
        target = "" if one.target is None else f"{one.target:.0f}"
        missed = "  MISSED" if one.target is not None and one.median >= one.target else ""
        times = f"{one.median:>10.1f}{one.p95:>10.1f}{one.processor:>11.1f}"
        print(f"{one.name:<36}{times}{target:>10}{one.kilobytes:>10.1f}{missed}")


def _show_scripts(sizes: Mapping[str, Mapping[str, int]]) -> None:
    print("\nscripts, kB compressed")
    for page, of_page in sizes.items():
        own = sum(size for name, size in of_page.items() if not name.startswith("echarts"))
        whole = ", ".join(f"{name} {size / 1000:.1f}" for name, size in of_page.items())
        print(f"{page:<36}{own / 1000:>10.1f}   {whole}")


def measure(root: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Fill, ask, and return every figure."""
    running = server.start(root / "redis")
    try:
        site = open_site(Config(shared_root=root, broker_url=running.url))
        begun = time.perf_counter()
        seeded = seeds.fill(site, evaluations_=arguments.evaluations, largest=arguments.trials)
        print(
            f"{arguments.evaluations} evaluations and {len(seeded.put)} results in {time.perf_counter() - begun:.0f} s"
        )
        entered = seeded.entered[0]
        size = site.shared.summaries.stat().st_size
        committed, put = median(seeded.committed) * 1e6, median(seeded.put) * 1e6
        slow = quantiles(seeded.put, n=100)[-1] * 1e6
        print(f"summaries: {arguments.trials} trials entered in {entered:.2f} s, {size / 1e6:.0f} MB in all")
        print(f"one result: {committed:.0f} µs in the store, {put:.0f} µs (99 %: {slow:.0f}) in the summaries")
        with web(root, running.url) as (client, pid):
            news = partial(seeds.commit_one, site, seeded)
            asked = [ask(client, pid, question, arguments.times, news) for question in questions(seeded.large)]
            figures = [figure for figure in asked if figure is not None]
            pages = {"dashboard": "/", "evaluation": f"/evaluations/{seeded.large}"}
            sizes = {name: scripts(client, path) for name, path in pages.items()}
        _show(figures)
        _show_scripts(sizes)
        return {
            "evaluations": arguments.evaluations,
            "trials": arguments.trials,
            "enter_seconds": entered,
            "commit_microseconds": committed,
            "put_microseconds": put,
            "summaries_bytes": size,
            "figures": [asdict(figure) for figure in figures],
            "scripts": sizes,
        }
    finally:
        server.stop(running)


def main() -> int:
    """Measure; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=200, help="how many, the largest included (%(default)s)")
    parser.add_argument("--trials", type=int, default=20_000, help="of the largest (%(default)s)")
    parser.add_argument("--times", type=int, default=30, help="requests of each kind (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--root", type=Path, help="fill this folder, and keep it, instead of a temporary one")
    arguments = parser.parse_args()
    root = arguments.root or Path(tempfile.mkdtemp(prefix="aeo-pages-"))
    try:
        found = measure(root, arguments)
    finally:
        if arguments.root is None:
            shutil.rmtree(root, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    slow = [one for one in found["figures"] if one["target"] is not None and one["median"] >= one["target"]]  # type: ignore[attr-defined]
    heavy = [page for page, sizes in found["scripts"].items() if _own(sizes) > SCRIPTS]  # type: ignore[attr-defined]
    return 1 if slow or heavy else 0


def _own(sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if not name.startswith("echarts"))


if __name__ == "__main__":
    sys.exit(main())
