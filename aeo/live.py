"""The worker's side of watching a trial: while somebody looks at it, what it writes is shown on the controller.

A thread beside the run looks at the run's files and pushes what is new of them (see `aeo.segments`). It only reads, it
keeps to limits, and whatever fails in it is logged and tried again later: a run never ends or waits because of it.
"""

from __future__ import annotations

import heapq
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from aeo import codec, logs, redaction, segments
from aeo.core.errors import AeoError
from aeo.core.model import Claim
from aeo.executors.secrets import names_secret
from aeo.layout import LIVE, run_name
from aeo.redaction import Redactor
from aeo.segments import Index, Shown
from aeo.site import WorkerSite
from aeo.store import watched
from aeo.transfer import copy, move, tree

log = logging.getLogger(__name__)

#: Seconds between two questions whether somebody looks; between two looks at the files while somebody does.
ASK_SECONDS, LOOK_SECONDS = 2.0, 0.7
#: A push is followed by so many times its own duration without one, so that a slow line is left to results.
REST = 1
#: Files of one look: those written last; and of one run.
FILES, FILES_OF_RUN = 100, 300
#: Files looked at, the others are left out.
FILES_LOOKED_AT = 5000
#: Bytes: a file up to the first is shown whole; of a larger one, or one that grew by more, the end of the second size.
WHOLE, END = 4 * 1024 * 1024, 256 * 1024
#: Bytes of one look, of one file in it; of one run, then no more is shown of it.
LOOK_BYTES, FILE_BYTES, RUN_BYTES = 4 * 1024 * 1024, 1024 * 1024, 1024 * 1024 * 1024
#: Bytes of a file that are kept on the controller.
KEPT = 8 * 1024 * 1024
#: Bytes before the end of what is known of a file by which it is known again.
_SEAM = 256


@contextmanager
def shown(
    site: WorkerSite,
    claim: Claim,
    folders: Callable[[], Sequence[Path]],
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Around a run: show what lies in ``folders()`` on the controller while somebody watches the trial.

    These secrets are taken out of it, and what in this process's environment looks like one.
    """
    stop = threading.Event()
    mirror = _Mirror(site, claim, folders, stop, secrets)
    try:
        _late.start(logs.of_run(claim)(mirror.run), stop)
    except RuntimeError as error:
        log.warning("%s cannot be watched: %s", claim.trial, error)
    try:
        yield
    finally:
        # Not waited for: it may be in the middle of a push over a dead line.
        stop.set()


class _Late:
    """Starts a thread for each run that goes on for a while; most short ones are over before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Callable[[], None], threading.Event]] = []
        self._runs = False

    def start(self, work: Callable[[], None], stop: threading.Event) -> None:
        """Let ``work`` begin in a while, unless it is to ``stop`` by then."""
        with self._lock:
            self._waiting.append((time.monotonic() + min(ASK_SECONDS, LOOK_SECONDS), work, stop))
            if not self._runs:
                threading.Thread(target=self._run, name="live", daemon=True).start()
                self._runs = True

    def _run(self) -> None:
        while True:
            with self._lock:
                self._waiting = [one for one in self._waiting if not one[2].is_set()]
                if not self._waiting:
                    self._runs = False
                    return
                now = time.monotonic()
                due = [one for one in self._waiting if one[0] <= now]
                self._waiting = [one for one in self._waiting if one[0] > now]
                pause = min((one[0] - now for one in self._waiting), default=0.0)
            for _, work, _ in due:
                try:
                    threading.Thread(target=work, name="live run", daemon=True).start()
                except RuntimeError as error:
                    log.warning("a run cannot be watched: %s", error)
            time.sleep(pause)


_late = _Late()


class _Mirror:
    def __init__(
        self,
        site: WorkerSite,
        claim: Claim,
        folders: Callable[[], Sequence[Path]],
        stop: threading.Event,
        secrets: Mapping[str, str] = MappingProxyType({}),
    ):
        self._site, self._claim, self._folders, self._stop = site, claim, folders, stop
        self._secrets = secrets
        self._followed: dict[str, _Followed] = {}
        self._count = self._looks = 0
        self._left = RUN_BYTES
        self._said = ""
        self._redactor: Redactor | None = None

    def _redacts(self) -> Redactor:
        if self._redactor is None:
            names = (name for name in os.environ if names_secret(name))
            own = redaction.secrets({*names, *self._site.config.secret_names})
            self._redactor = Redactor({**own, **self._secrets})
        return self._redactor

    def run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            pause = ASK_SECONDS
            try:
                if watched.is_watched(self._site.db, self._claim.evaluation, self._claim.trial):
                    self._look()
                    pause = max(LOOK_SECONDS, REST * (time.monotonic() - began))
            except (AeoError, OSError) as error:
                self._say(str(error))
            except Exception:
                log.exception("%s cannot be watched any more", self._claim.trial)
                return

    def _say(self, problem: str) -> None:
        if problem != self._said and not self._stop.is_set():
            log.warning("%s cannot be watched now: %s", self._claim.trial, problem)
        self._said = problem

    def _look(self) -> None:
        # What stands in two folders is that of the first.
        found = list({one.name: one for folder in reversed(self._folders()) for one in _files(folder)}.values())
        for gone in self._followed.keys() - {one.name for one in found}:
            del self._followed[gone]
        with tempfile.TemporaryDirectory(prefix="aeo-live-") as scratch:
            new = Path(scratch)
            shown = heapq.nlargest(FILES, found, key=lambda one: one.modified)
            written = self._write(shown, new)
            if not written or self._stop.is_set():
                return
            target = f"inbox/{self._claim.evaluation}/{LIVE}/{run_name(self._claim.trial, self._claim.token)}"
            password = self._site.config.transfer_password
            self._looks += 1
            index = self._index(left_out=max(0, len(found) - len(self._followed)))
            (new / segments.index_name(self._looks)).write_text(codec.dumps(index))
            try:
                move.push(self._site.remote, new, target, password=password)
            except BaseException:
                # What was read is lost: each file is shown anew.
                for followed in self._followed.values():
                    followed.forget()
                raise
            self._said = ""

    def _write(self, found: list[_File], new: Path) -> int:
        """Write what is new of these files as segments; returns how many, at least 1 when there is any news."""
        budget, written = LOOK_BYTES, 0
        for one in found:
            if min(budget, self._left) <= 0:
                break
            followed = self._followed.get(one.name)
            if followed is None:
                if self._count >= FILES_OF_RUN:
                    continue
                self._count += 1
                followed = self._followed[one.name] = _Followed(self._count, self._redacts())
            # One that was removed or cannot be read any more.
            with suppress(OSError):
                piece = followed.piece(one.path, min(FILE_BYTES, budget, self._left))
                if piece is None:
                    continue
                written += 1
                budget, self._left = budget - piece.read, self._left - piece.read
                if piece.content:
                    (new / segments.name(followed.number, piece.generation, piece.offset)).write_bytes(piece.content)
        return written

    def _index(self, *, left_out: int) -> Index:
        files = {name: one.shown() for name, one in self._followed.items() if one.generation}
        return Index(files=files, left_out=left_out)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    generation: int
    offset: int
    content: bytes
    #: Bytes read of the file for it.
    read: int


class _Followed:
    """One growing file: what of it was read so far."""

    def __init__(self, number: int, redactor: Redactor):
        self.number, self._redactor = number, redactor
        self.generation = 0
        self._identity: tuple[int, int] | None = None
        self._size = self._read_to = self._begin = self._end = 0
        self._seam = b""
        self._stream = redactor.stream()

    def shown(self) -> Shown:
        begin = max(self._begin, self._end - KEPT)
        return Shown(number=self.number, generation=self.generation, begin=begin, end=self._end, size=self._size)

    def forget(self) -> None:
        """Begin anew at the next look."""
        self._identity = None

    def piece(self, path: Path, budget: int) -> _Piece | None:
        """What is new, at most ``budget`` bytes of the file; None when nothing is.

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        with copy.open_regular(path) as file:
            state = os.fstat(file.fileno())
            if self._identity != (state.st_dev, state.st_ino) or not self._goes_on(file, state.st_size):
                self._begin_anew(file, state)
            elif state.st_size - self._read_to > WHOLE:
                self._skip_to(file, state.st_size - END)
            elif state.st_size == self._read_to and self._size == state.st_size:
                return None
            self._size = state.st_size
            content = os.pread(file.fileno(), min(budget, state.st_size - self._read_to), self._read_to)
            self._read_to += len(content)
            self._seam = (self._seam + content)[-_SEAM:]
            text = self._stream.feed(content)
            offset, self._end = self._end, self._end + len(text)
            return _Piece(generation=self.generation, offset=offset, content=text, read=len(content))

    def _goes_on(self, file: BinaryIO, size: int) -> bool:
        """Whether the file is what was read, and perhaps more."""
        begin = self._read_to - len(self._seam)
        return size >= self._read_to and os.pread(file.fileno(), len(self._seam), begin) == self._seam

    def _begin_anew(self, file: BinaryIO, state: os.stat_result) -> None:
        self._identity, self.generation = (state.st_dev, state.st_ino), self.generation + 1
        self._read_to = self._begin = self._end = 0
        self._seam = b""
        self._stream = self._redactor.stream()
        if state.st_size > WHOLE:
            self._skip_to(file, state.st_size - END)

    def _skip_to(self, file: BinaryIO, offset: int) -> None:
        """Leave out what lies before ``offset``; what comes is counted on from there."""
        begin = max(0, offset - max(_SEAM, self._redactor.longest))
        lead = os.pread(file.fileno(), offset - begin, begin)
        self._read_to, self._seam = offset, lead[-_SEAM:]
        self._begin = self._end = max(self._end, offset)
        self._stream = self._redactor.stream()
        # Of a secret that lies across the border, the rest is not to be shown.
        self._stream.feed(lead)


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    path: Path
    modified: int


def _files(folder: Path) -> list[_File]:
    """The regular files of a folder that may change meanwhile, or not be there; no link is followed."""
    found: list[_File] = []
    waiting = [""]
    while waiting and len(found) < FILES_LOOKED_AT:
        below = waiting.pop(0)
        with suppress(OSError), os.scandir(folder / below) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                if tree.odd(entry.name) or tree.too_long(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        modified = entry.stat(follow_symlinks=False).st_mtime_ns
                        found.append(_File(name=name, path=folder / name, modified=modified))
    return found
