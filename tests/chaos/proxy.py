"""A TCP proxy that makes a line bad: late, cut, refused, or silent."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

#: Closing with this sends a reset, as a line that breaks does.
_RESET = struct.pack("ii", 1, 0)
_Piece = tuple[float, bytes]


class Proxy:
    """Listens on loopback and passes on what comes to what ``connect`` opens. Leaving the context ends it."""

    def __init__(self, connect: Callable[[], socket.socket]):
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        #: Seconds each piece is late, in each direction.
        self.delay = 0.0
        #: New connections are reset.
        self.refuses = False
        #: How many connections were made, and how many of them cut.
        self.made = self.dropped = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> int:
        """Break every connection now; returns how many."""
        with self._lock:
            lines, self._lines = self._lines, set()
        for line in lines:
            _reset(line)
        self.dropped += len(lines) // 2
        return len(lines) // 2

    def close(self) -> None:
        """End it."""
        # A thread that waits in accept would keep the port.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        if self.refuses:
            _reset(line)
            return
        try:
            time.sleep(self.delay)
            other = self._connect()
        except OSError:
            _reset(line)
            return
        self.made += 1
        with self._lock:
            self._lines |= {line, other}
        for source, target in ((line, other), (other, line)):
            pieces: queue.SimpleQueue[_Piece] = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(source, pieces), daemon=True).start()
            threading.Thread(target=self._write, args=(source, target, pieces), daemon=True).start()

    def _read(self, source: socket.socket, pieces: queue.SimpleQueue[_Piece]) -> None:
        while True:
            try:
                piece = source.recv(65536)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + self.delay, piece))
            if not piece:
                return

    def _write(self, source: socket.socket, target: socket.socket, pieces: queue.SimpleQueue[_Piece]) -> None:
        while True:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                if piece:
                    target.sendall(piece)
                    continue
                target.shutdown(socket.SHUT_WR)
            break
        with self._lock:
            # Both directions have ended when both sockets are gone from here.
            self._lines.discard(source)
            over = target not in self._lines
        if over:
            source.close()
            target.close()


def to(port: int) -> Proxy:
    """A proxy of a port of this machine."""
    return Proxy(lambda: socket.create_connection(("127.0.0.1", port), timeout=None))


def _reset(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # A thread that waits in recv would keep it open.
        line.shutdown(socket.SHUT_RDWR)
    line.close()
