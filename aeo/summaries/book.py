"""The file of the summaries: opened when first asked, made anew when gone, damaged or of another version."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from aeo.core.errors import Unavailable
from aeo.summaries.schema import SCHEMA, VERSION

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds to wait while another process writes; a large evaluation is entered in one go.
BUSY_SECONDS = 15.0
#: Answers over whole evaluations kept in memory: several pages ask for the same, again and again.
KEPT = 64
#: Seconds between two lines in the log about the same trouble, at least.
COMPLAINT_SECONDS = 60.0
#: SQLite's own words for what says nothing of the file's content.
_PASSING = ("locked", "full", "readonly", "unable to open", "interrupted")


class Book:
    """Connections to the summaries' file. Safe to share between threads, and to have over a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        #: Of which process and of which file the idle connections are.
        self._owner: tuple[int, int] = (0, 0)
        self._complained = -math.inf
        self._known: OrderedDict[tuple[int, str], Any] = OrderedDict()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection to read by. What happened to the file is put right for the next call.

        Raises:
            Unavailable: the file cannot be read.
        """
        try:
            with self._connection() as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            self.heal(error)
            raise Unavailable(f"The summaries cannot be read: {error}") from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction, committed at the end.

        Raises:
            sqlite3.Error, OSError: the file cannot be written; nothing was.
        """
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def known(self, id: str, what: str, look: Callable[[sqlite3.Connection, int], T]) -> T:
        """What ``look`` finds for the evaluation's number, kept until anything of it changes.

        An evaluation the book does not have has the number 0.

        Raises:
            Unavailable: the file cannot be read.
        """
        with self.read() as connection:
            query = "SELECT number, version FROM evaluations WHERE id = ?"
            number, version = connection.execute(query, (id,)).fetchone() or (0, 0)
            key = (version, what)
            with self._lock:
                if key in self._known:
                    self._known.move_to_end(key)
                    found: T = self._known[key]
                    return found
            found = look(connection, number)
        with self._lock:
            if number:
                self._known[key] = found
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found

    def heal(self, error: BaseException) -> bool:
        """Throw the file away if it is damaged, as this error may say; what it held is entered again from the store."""
        if not isinstance(error, sqlite3.DatabaseError) or any(word in str(error) for word in _PASSING):
            return False
        self.close()
        with suppress(OSError), self._alone():
            # Another process may have made it anew meanwhile.
            if not self._is_sound():
                log.error("the summaries in %s are damaged (%s); they are made anew", self.path, error)
                self._remove()
                return True
        return False

    def may_complain(self) -> bool:
        """Whether it is time for a line in the log again: a full disk fails every write."""
        now = time.monotonic()
        if now - self._complained < COMPLAINT_SECONDS:
            return False
        self._complained = now
        return True

    def close(self) -> None:
        """Close what is idle; the book can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = self._taken() or self._open()
        owner = self._owner
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if owner == self._owner and not connection.in_transaction:
                self._idle.append(connection)
                return
        connection.close()

    def _taken(self) -> sqlite3.Connection | None:
        """An idle connection to the file that is there now."""
        try:
            owner = (os.getpid(), self.path.stat().st_ino)
        except FileNotFoundError:
            owner = (os.getpid(), 0)
        with self._lock:
            if owner != self._owner:
                forked = owner[0] != self._owner[0]
                old, self._idle, self._owner = self._idle, [], owner
                if not forked:  # else they are the parent's
                    for connection in old:
                        connection.close()
            return self._idle.pop() if self._idle else None

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = self._connect()
        try:
            if _version(connection) != VERSION:
                connection.close()
                with self._alone():
                    connection = self._made()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._owner = (os.getpid(), self.path.stat().st_ino)
        return connection

    def _made(self) -> sqlite3.Connection:
        """The file with its tables, made by whoever is first."""
        connection = self._connect()
        if _version(connection) == VERSION:
            return connection
        connection.close()
        self._remove()
        self.path.touch(mode=0o600)
        connection = self._connect()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # A lost last second after a power cut is entered again from the store.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _is_sound(self) -> bool:
        try:
            with closing(self._connect()) as connection:
                answer = connection.execute("PRAGMA quick_check(1)").fetchone()
                connection.execute("SELECT 1 FROM evaluations, cells, lines, texts, others LIMIT 1").fetchone()
                return _version(connection) == VERSION and answer[0] == "ok"
        except sqlite3.Error:
            return False

    def _remove(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
