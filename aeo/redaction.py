"""Values of known secrets taken out of text, files and streams: each becomes ``${NAME}``.

A value is found as it is, as JSON and addresses write it, and in base64. Binary files keep their length: there each
byte of a value becomes ``*``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

#: Shorter values are not looked for: they would be found everywhere.
SHORTEST = 6
#: Of its base64 in the middle of other bytes both ends are unknown; what is left of a shorter one would be too little.
_SHORTEST_ENCODED = 8
#: Lines of a value of several lines (a key file) that are looked for by themselves are at least so long.
_SHORTEST_LINE = 20
#: Bytes at the start of a file that tell whether it is text.
_HEAD = 8192
_CHUNK = 1024 * 1024


class Redactor:
    """Knows the secrets to take out, by the names of their variables."""

    def __init__(self, secrets: Mapping[str, str]):
        forms = {form: name for name, value in secrets.items() for form in _forms(value)}
        #: What is looked for, as bytes, to the name it is replaced by; longer ones win.
        self._names = {form.encode(): f"${{{name}}}".encode() for form, name in forms.items()}
        ordered = sorted(self._names, key=lambda form: (-len(form), form))
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None
        #: Length of the longest, bytes; 0 when there is nothing to take out.
        self.longest = max(map(len, ordered), default=0)

    def __bool__(self) -> bool:
        return self._pattern is not None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is None:
            return text
        # Halves of surrogate pairs travel through unharmed.
        return self.content(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def content(self, content: bytes, *, binary: bool = False) -> bytes:
        """The bytes of a whole text without secrets."""
        return self._pattern.sub(lambda found: self._shown(found, binary), content) if self._pattern else content

    def so_far(self, content: bytes, *, binary: bool = False) -> tuple[bytes, bytes]:
        """What can be shown of content that goes on, and what is held back, as a secret may begin there."""
        if self._pattern is None:
            return content, b""
        pieces, at = [], 0
        for found in self._pattern.finditer(content):
            if self._begins(content[found.start() : found.start() + self.longest]):
                # It may go on to be a longer secret.
                break
            pieces += [content[at : found.start()], self._shown(found, binary)]
            at = found.end()
        end = len(content) - self.begun(content[at:])
        return b"".join([*pieces, content[at:end]]), content[end:]

    def window(self, around: bytes, lead: int, length: int) -> bytes:
        """The text of the ``length`` bytes that begin ``lead`` bytes into ``around``, read with what is beside them.

        A secret is shown in the window it begins in, so that neighbouring windows give the text once.
        """
        if self._pattern is None:
            return around[lead : lead + length]
        pieces, at, end = [], lead, lead + length
        for found in self._pattern.finditer(around):
            if found.end() <= lead or found.start() >= end:
                continue
            pieces.append(around[at : found.start()])
            if found.start() >= lead:
                pieces.append(self._names[found[0]])
            at = found.end()
        pieces.append(around[at:end])
        return b"".join(pieces)

    def begun(self, content: bytes) -> int:
        """How many bytes at the end of what there is so far may be the beginning of a secret."""
        return next(
            (size for size in range(min(self.longest, len(content)), 0, -1) if self._begins(content[-size:])), 0
        )

    def stream(self, *, binary: bool = False) -> Stream:
        """Begin to take secrets out of content that comes in pieces."""
        return Stream(self, binary=binary)

    def _shown(self, found: re.Match[bytes], binary: bool) -> bytes:
        return b"*" * len(found[0]) if binary else self._names[found[0]]

    def _begins(self, rest: bytes) -> bool:
        return any(len(form) > len(rest) and form.startswith(rest) for form in self._names)


class Stream:
    """Takes secrets out of pieces of one content; what may be the beginning of a secret waits for the next piece."""

    def __init__(self, redactor: Redactor, *, binary: bool):
        self._redactor, self._binary = redactor, binary
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Give the next piece; returns what can be shown by now."""
        content = self._held + piece
        shown, self._held = self._redactor.so_far(content, binary=self._binary)
        return shown

    def finish(self) -> bytes:
        """Nothing comes any more; returns the rest."""
        held, self._held = self._held, b""
        return self._redactor.content(held, binary=self._binary)


def known(names: Iterable[str], environment: Mapping[str, str] | None = None) -> Redactor:
    """The redactor for these variables of an environment, by default this process's; those not set do not count."""
    return Redactor(secrets(names, environment))


def secrets(names: Iterable[str], environment: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The values of these variables by name, those that are set."""
    environment = os.environ if environment is None else environment
    return {name: environment[name] for name in names if environment.get(name)}


def holding(redactor: Redactor, folder: Path, names: Iterable[str]) -> list[str]:
    """Those of a folder's files that hold a secret; read in pieces, however large they are.

    Raises:
        OSError: a file cannot be read, or is no regular file.
    """
    return [name for name in names if redactor and _holds(redactor, folder / name)]


def rewrite(redactor: Redactor, path: Path, draft: Path) -> None:
    """Take the secrets out of a file; it is replaced at once, by way of ``draft`` on the same disk.

    Raises:
        OSError: it cannot be read, or not be written.
    """
    with _opened(path) as reading, draft.open("wb") as writing:
        state = os.fstat(reading.fileno())
        for piece in pieces(redactor, reading):
            writing.write(piece)
        os.fchmod(writing.fileno(), stat.S_IMODE(state.st_mode))
    os.utime(draft, ns=(state.st_mtime_ns, state.st_mtime_ns))
    draft.replace(path)


def pieces(redactor: Redactor, reading: BinaryIO) -> Iterator[bytes]:
    """The content of an open file without secrets, in pieces of bounded size."""
    piece = reading.read(_CHUNK)
    stream = redactor.stream(binary=is_binary(piece))
    while piece:
        yield stream.feed(piece)
        piece = reading.read(_CHUNK)
    yield stream.finish()


def is_binary(head: bytes) -> bool:
    """Whether content that begins so is no text."""
    return b"\0" in head[:_HEAD]


def _holds(redactor: Redactor, path: Path) -> bool:
    with _opened(path) as reading:
        before = b""
        while piece := reading.read(_CHUNK):
            around = before + piece
            if redactor.content(around) != around:
                return True
            before = around[-(redactor.longest - 1) :]
    return False


def _opened(path: Path) -> BinaryIO:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(f"{path} is no regular file")


def _forms(value: str) -> Iterator[str]:
    """How a secret may stand in a text."""
    value = value.strip()
    lines = [line.strip() for line in value.splitlines()]
    own = [line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----")]
    for one in {value, *(own if len(lines) > 1 else ())}:
        if len(one) >= SHORTEST:
            yield one
            yield json.dumps(one)[1:-1]
            yield json.dumps(one, ensure_ascii=False)[1:-1]
            yield quote(one, safe="")
            yield from _encoded(one.encode("utf-8", "surrogatepass"))


def _encoded(value: bytes) -> Iterator[str]:
    """The base64 of bytes that hold a value, which is another one for each of three places it may begin at."""
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + value).rstrip(b"=").decode()
        # Characters that the bytes beside it have a part in.
        first = -(-before * 8 // 6)
        last = (before + len(value)) * 8 // 6
        inner = whole[first:last]
        if len(inner) >= _SHORTEST_ENCODED:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")
