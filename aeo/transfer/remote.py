"""Where the controller's shared root is, as a worker reaches it.

========================================  =====================================================
``/abs/path`` or ``file:///abs/path``     on this machine
``ssh://[user@]host[:port]/abs/path``     over ssh; keys and the like come from ``~/.ssh/config``
``rsync://[user@]host[:port]/module[/sub]``  an rsync daemon; its password is given apart
``rsync://…/aeo.out.NAME``                the controller's own daemon: what is written goes to the
                                          module ``aeo.in.NAME`` beside it, which is the inbox
========================================  =====================================================
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, cast
from urllib.parse import quote, unquote

from aeo.core.errors import InputError

FLAG = "--transfer-url"
#: What modules of the controller's own daemon begin with: one to read, one to write.
READING, WRITING = "aeo.out.", "aeo.in."
#: What every path that is written begins with.
INBOX = "inbox/"

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
#: rsync expands these on the other machine, whatever is done to protect arguments.
_WILDCARDS = frozenset("*?[]\\")
_FORMS = "Use /path, file:///path, ssh://[user@]host[:port]/path or rsync://[user@]host[:port]/module[/sub]."


@dataclass(frozen=True, kw_only=True)
class Remote:
    """An address of a shared root; made by `parse`, so each part is known to be safe in an argument list."""

    kind: Literal["local", "ssh", "rsync"]
    #: Absolute; below the module for ``rsync``, where it may be empty.
    path: str
    #: Without the brackets of an IPv6 address.
    host: str = ""
    #: 0 means the usual one.
    port: int = 0
    user: str = ""
    #: Only for ``rsync``.
    module: str = ""

    def __str__(self) -> str:
        if self.kind == "local":
            return self.path
        port = f":{self.port}" if self.port else ""
        module = f"/{self.module}" if self.module else ""
        return f"{self.kind}://{self._account}{port}{module}{quote(self.path)}"

    @property
    def is_ours(self) -> bool:
        """Whether it is the controller's own daemon."""
        return self.kind == "rsync" and self.module.startswith(READING)

    def destination(self, relative: str = "") -> str:
        """`argument` of where ``relative`` is written to; at the controller's own daemon the inbox is all there is."""
        if not self.is_ours:
            return self.argument(relative)
        inbox = replace(self, module=WRITING + self.module[len(READING) :])
        return inbox.argument(relative.removeprefix(INBOX))

    @property
    def _account(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.user else host

    def argument(self, relative: str = "") -> str:
        """The address of ``relative`` as rsync's command line takes it; ends with ``/`` if ``relative`` does."""
        path = f"{self.path.rstrip('/')}/{relative}"
        if self.kind == "local":
            return path
        if self.kind == "ssh":
            return f"{self._account}:{path}"
        port = f":{self.port}" if self.port else ""
        return f"rsync://{self._account}{port}/{self.module}{path}"


def parse(url: str) -> Remote:
    """Read a transfer address.

    Raises:
        InputError: it has another form, a password, a relative path, ``..``, or an odd host. The message never repeats
            the address, as it may hold a password.
    """
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in url):
        _refuse("has control characters.", "Remove them.")
    if url.startswith("/"):
        return Remote(kind="local", path=_absolute(url))
    scheme, found, rest = url.partition("://")
    if not found:
        _refuse("is neither an absolute path nor an address with a scheme.", _FORMS)
    if scheme not in ("file", "ssh", "rsync"):
        _refuse("has a scheme that is not known.", _FORMS)
    authority, slash, path = rest.partition("/")
    if "?" in rest or "#" in rest:
        _refuse("has a query or a fragment.", "Write ? as %3F and # as %23, or choose a path without them.")
    if not slash:
        _refuse("has no path.", _FORMS)
    path = _unquote(path)
    if scheme == "file":
        if authority not in ("", "localhost"):
            _refuse("names a host in file://.", "Write file:///path, with three slashes.")
        return Remote(kind="local", path=_absolute(path))
    return _distant(cast('Literal["ssh", "rsync"]', scheme), authority, path)


def _distant(kind: Literal["ssh", "rsync"], authority: str, path: str) -> Remote:
    user, host, port = _split(authority)
    if _WILDCARDS & set(path):
        _refuse("has one of * ? [ ] \\ in its path.", "Choose a folder without these.")
    if kind == "ssh":
        return Remote(kind=kind, host=host, port=port, user=user, path=_absolute(path))
    module, _, below = path.partition("/")
    if not _MODULE.fullmatch(module):
        _refuse("names no rsync module.", "Write rsync://host/module, the module as in rsyncd.conf.")
    below = _absolute(below)
    return Remote(kind=kind, host=host, port=port, user=user, module=module, path="" if below == "/" else below)


def _split(authority: str) -> tuple[str, str, int]:
    user, at, place = authority.rpartition("@")
    if ":" in user:
        _refuse("holds a password.", "Leave it out: ssh uses keys, rsync:// takes --transfer-password.")
    if at and not _USER.fullmatch(user):
        _refuse("has an odd user name.", "Use letters, digits and . _ + -.")
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            _refuse("has no IPv6 address between the brackets.", "Write it as [2001:db8::1].")
        if "%" in host or (port and not port.startswith(":")):
            _refuse("has an odd IPv6 host.", "Write it as [2001:db8::1]:port, without a zone.")
        return user, host, _port(port[1:]) if port else 0
    host, colon, port = place.partition(":")
    if ":" in port:
        _refuse("has an IPv6 address without brackets.", "Write it as [2001:db8::1].")
    if not _HOST.fullmatch(host):
        _refuse("has an odd host.", "Use a host name of letters, digits and . _ -, not starting with '-'.")
    return user, host, _port(port) if colon else 0


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        _refuse("has a port that is none.", "Use a number from 1 to 65535.")
    return int(text)


def _unquote(path: str) -> str:
    try:
        text = unquote(path, errors="strict")
    except UnicodeDecodeError:
        _refuse("has a path that is not UTF-8.", "Choose a folder with another name.")
    if any(unicodedata.category(letter) == "Cc" for letter in text):
        _refuse("has control characters.", "Remove them.")
    return text


def _absolute(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        _refuse("has '..' in its path.", "Write the path without it.")
    return "/" + "/".join(parts)


def _refuse(message: str, fix: str) -> NoReturn:
    raise InputError(f"the address {message}", field=FLAG, fix=fix)
