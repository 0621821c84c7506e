"""What was asked, on disk: ``evaluation.json`` and ``trials.jsonl``, written once, read by controller and workers.

An evaluation that took over results of an earlier one also has ``carried.jsonl``: their rows, one a line.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from aeo import codec
from aeo.core.errors import InputError, NotFound
from aeo.core.model import Evaluation, PlannedTrial, TrialRow

EVALUATION = "evaluation.json"
TRIALS = "trials.jsonl"
CARRIED = "carried.jsonl"

#: Planned trials that are kept in memory over all evaluations that were read, about 1.5 KiB each.
KEPT_TRIALS = 120_000


@dataclass(frozen=True, kw_only=True)
class Record:
    """An evaluation read back."""

    #: Without its trials: they are in `trials`.
    evaluation: Evaluation
    #: By name, in planned order.
    trials: Mapping[str, PlannedTrial]

    def whole(self) -> Evaluation:
        """The evaluation with its trials."""
        return replace(self.evaluation, plan=replace(self.evaluation.plan, trials=tuple(self.trials.values())))


_known: OrderedDict[Path, Record] = OrderedDict()
_lock = threading.Lock()


def write(folder: Path, evaluation: Evaluation) -> None:
    """Write both files into an existing folder, durably; ``evaluation.json`` last."""
    lines = "".join(codec.dumps(trial) + "\n" for trial in evaluation.plan.trials)
    _write(folder / TRIALS, lines)
    _write(folder / EVALUATION, codec.dumps(replace(evaluation, plan=replace(evaluation.plan, trials=()))))


def write_carried(folder: Path, rows: Iterable[TrialRow]) -> None:
    """Write the rows of the results that were taken over into an existing folder, durably."""
    _write(folder / CARRIED, "".join(codec.dumps(row) + "\n" for row in rows))


def carried(folder: Path) -> dict[str, TrialRow]:
    """The rows of the results that an evaluation took over, by trial; lines that are damaged are left out."""
    rows: dict[str, TrialRow] = {}
    with suppress(FileNotFoundError), (folder / CARRIED).open("rb") as lines:
        for line in lines:
            with suppress(InputError):
                row = codec.loads(TrialRow, line)
                rows[row.summary.trial] = row
    return rows


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def header(folder: Path) -> Evaluation:
    """Read what was asked without its trials; kept in memory for the next call.

    Raises:
        NotFound: there is no such evaluation.
        InputError: the file is damaged.
    """
    return _header(folder)


@lru_cache(maxsize=256)
def _header(folder: Path) -> Evaluation:
    try:
        return codec.loads(Evaluation, (folder / EVALUATION).read_bytes())
    except FileNotFoundError:
        raise NotFound(f"No evaluation {folder.name!r} on disk.") from None
    except InputError as error:
        raise InputError(f"damaged: {error}", field=str(folder)) from None


def read(folder: Path) -> Record:
    """Read both files; kept in memory for the next call, as they never change.

    Raises:
        NotFound: there is no such evaluation.
        InputError: a file is damaged.
    """
    # One reads, the others wait for it: all batches of an evaluation begin at the same moment.
    with _lock:
        known = _known.get(folder)
        if known is None:
            known = _known[folder] = _read(folder)
        _known.move_to_end(folder)
        # The last one in any case: it is in use.
        while len(_known) > 1 and sum(len(one.trials) for one in _known.values()) > KEPT_TRIALS:
            _known.popitem(last=False)
        return known


def _read(folder: Path) -> Record:
    evaluation = _header(folder)
    try:
        trials: dict[str, PlannedTrial] = {}
        with (folder / TRIALS).open("rb") as lines:
            for line in lines:
                trial = codec.loads(PlannedTrial, line)
                trials[trial.name] = trial
    except FileNotFoundError:
        raise NotFound(f"No evaluation {folder.name!r} on disk.") from None
    except InputError as error:
        raise InputError(f"damaged: {error}", field=str(folder)) from None
    return Record(evaluation=evaluation, trials=trials)
