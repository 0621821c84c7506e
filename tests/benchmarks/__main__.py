"""AEO beside its peers on the same work in one run: ``python -m tests.benchmarks``; see README.md here."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

from benchmarks import environments, report  # noqa: E402
from benchmarks.figures import Row, now, row  # noqa: E402
from benchmarks.sizes import QUICK, Size  # noqa: E402
from rich.console import Console  # noqa: E402

from aeo import __version__  # noqa: E402

#: In this order; the first tell most.
ROWS = ("makespan", "uneven", "first_start", "cost", "harbor", "growth", "many_workers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 when every row was measured, whether or not it reaches what it should; 1 else."""
    asked = _parser().parse_args(arguments)
    # Stopped by a signal, everything that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = _size(asked)
    console = Console(width=None if sys.stdout.isatty() else 160)
    kept = {} if asked.fresh else _kept(asked.json)
    names = [name for name in ROWS if name in (asked.only or ROWS)]
    measured = []
    for name in names:
        if asked.resume and _usable(kept.get(name), size):
            console.print(f"{name}: kept from {kept[name].at}")
            continue
        console.print(f"{name}: measuring since {now()}, load {os.getloadavg()[0]:.1f}")
        kept[name] = _measured(name, size)
        measured.append(name)
        # After each row: whatever happens next, this one is done.
        _write(asked, [kept[one] for one in ROWS if one in kept])
        console.print(f"{name}: {report.summary(kept[name])} ({kept[name].seconds:.0f} s)", markup=False)
    rows = [kept[one] for one in ROWS if one in kept]
    _write(asked, rows)
    report.show(rows, console, old={name: kept[name].at for name in kept if name not in measured})
    if asked.quick:
        console.print("--quick: small sizes once, where what is paid once weighs more than the reaches allow")
    console.print(f"written: {asked.json}" + ("" if asked.results is None else f", {asked.results}"))
    return int(any(kept[name].failure for name in names))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=ROWS, metavar="ROW", help=f"this row; repeatable: {', '.join(ROWS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one repetition of small sizes; RESULTS.md is left alone")
    parser.add_argument("--repeats", type=_positive, help="repetitions of each figure (default: 5)")
    parser.add_argument("--workers", type=_positive, help="workers of the row many_workers (default: 50)")
    parser.add_argument(
        "--whole", action="store_true", help="run all trials of the largest evaluation of the row growth"
    )
    parser.add_argument("--resume", action="store_true", help="keep rows of this version and size that are in the file")
    parser.add_argument("--fresh", action="store_true", help="drop the rows that are in the file")
    parser.add_argument(
        "--json", type=Path, help="the file of figures (default: results.json here, or in the cache with --quick)"
    )
    parser.add_argument(
        "--results", type=Path, help="the table as Markdown (default: RESULTS.md here; none with --quick)"
    )
    parser.add_argument("--prepare", action="store_true", help="only make the environments of the peers")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _size(asked: argparse.Namespace) -> Size:
    size = QUICK if asked.quick else Size()
    if asked.json is None:
        asked.json = environments.cache() / "quick.json" if asked.quick else _HERE / "results.json"
    if asked.results is None and not asked.quick:
        asked.results = _HERE / "RESULTS.md"
    given = {"repeats": asked.repeats, "workers": asked.workers}
    size = replace(size, **{key: value for key, value in given.items() if value})
    return replace(size, growth_part=None) if asked.whole else size


def _measured(name: str, size: Size) -> Row:
    module = importlib.import_module(f"benchmarks.rows.{name}")
    load, begun = os.getloadavg()[0], time.monotonic()
    made = Row(name=name, title=module.TITLE, repeats=size.repeats, load=round(load, 2), revision=_revision(size))
    try:
        found = module.measure(size)
        made = replace(made, lines=found.lines, facts=found.facts)
    except Exception as error:  # the other rows can still be measured
        traceback.print_exc()
        made = replace(made, failure=f"{type(error).__name__}: {str(error).strip()[-300:]}")
    return replace(made, seconds=round(time.monotonic() - begun, 1), at=now())


def _revision(size: Size) -> str:
    """What figures hang on: the commit, whether it was changed since, the sizes."""
    return f"{_version()} {size}"


def _version() -> str:
    # Not ``describe --dirty``: we write into this tree ourselves.
    changed = _git("status", "--porcelain", "--", ":/aeo", ":/webapp")
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _git(*words: str) -> str:
    answer = subprocess.run(["git", *words], cwd=_HERE, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"


def _usable(found: Row | None, size: Size) -> bool:
    return found is not None and not found.failure and found.revision == _revision(size)


def _kept(path: Path) -> dict[str, Row]:
    try:
        return {raw["name"]: row(raw) for raw in json.loads(path.read_text())["rows"]}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        print(f"{path} cannot be read; it is made anew", file=sys.stderr)
        return {}


def _write(asked: argparse.Namespace, rows: Sequence[Row]) -> None:
    about = {"command": "python -m tests.benchmarks", "machine": _machine()}
    text = json.dumps({**about, "rows": [one.plain() for one in rows]}, indent=1)
    draft = asked.json.with_suffix(".new")
    draft.write_text(text + "\n")
    draft.replace(asked.json)
    if asked.results is not None:
        asked.results.write_text(report.markdown(rows, about))


def _machine() -> Mapping[str, Any]:
    import psutil

    peers = {}
    for name in environments.PEERS:
        peers.update(environments.versions(name) if environments.made(name) else {})
    return {
        "CPUs": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
        "Python": platform.python_version(),
        "AEO": f"{__version__} ({_version()})",
        **peers,
    }


if __name__ == "__main__":
    if "--prepare" in sys.argv[1:]:
        for one in environments.PEERS:
            print(one, environments.python_of(one))
        sys.exit(0)
    sys.exit(main())
