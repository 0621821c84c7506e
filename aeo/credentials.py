"""Each worker's own way into the store: issued when it registers, widened with each batch, taken away at once.

What was issued stands in the controller's root, so that it outlives the server that forgets it. Only digests do: the
password itself is told once, to the worker. Its secret for files is another one, kept by `aeo.rsyncd`, whose rights
follow this book.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from aeo import folders
from aeo.codec import dumps, loads
from aeo.core.errors import AeoError, Conflict, InputError
from aeo.core.model import WorkerInfo
from aeo.layout import Shared
from aeo.rsyncd import modules
from aeo.rsyncd.modules import Rights
from aeo.site import Site
from aeo.store import access
from aeo.store import evaluations as evaluations_store
from aeo.store.access import NotOffered
from aeo.store.connection import Db
from aeo.store.evaluations import BatchState

log = logging.getLogger(__name__)

#: `Config.worker_credentials`: own where the server can, the broker's own address for all, or own or nothing.
AUTO, SHARED, OWN = "auto", "shared", "own"


@dataclass(kw_only=True)
class Ahead:
    """Content folders that a worker fetches before it runs them."""

    digests: tuple[str, ...]
    #: When it was asked for, seconds since 1970.
    at: float


@dataclass(kw_only=True)
class Account:
    """What one worker was given."""

    #: SHA-256 of its password.
    digest: str
    #: The process it was given to.
    boot: str
    #: The evaluations it has a share in, or holds something of; until when at least, seconds since 1970.
    evaluations: dict[str, float] = field(default_factory=dict)
    #: Evaluations it reached before, until when it may get them back; seconds since 1970.
    past: dict[str, float] = field(default_factory=dict)
    #: Whether the server knows all of this.
    told: bool = True
    #: Since when its worker is not there, seconds since 1970; 0 while it is.
    lost: float = 0.0
    #: What it was asked to fetch ahead, by dataset.
    ahead: dict[str, Ahead] = field(default_factory=dict)


@dataclass(kw_only=True)
class Book:
    """What all workers were given."""

    accounts: dict[str, Account] = field(default_factory=dict)
    #: Workers that were revoked, and when; seconds since 1970.
    revoked: dict[str, float] = field(default_factory=dict)
    #: Why workers share the broker's password; "" where they do not.
    shared: str = ""
    #: Those who do: what they need is not known, so their secrets for files open all tasks and the whole inbox.
    unnamed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a worker is told."""

    #: Without credentials where it keeps its own.
    broker_url: str = field(repr=False)
    #: Its secret at the controller's own rsync daemon; "" where there is none, or it goes on with what it has.
    files: str = field(default="", repr=False)
    #: It goes on with what it has.
    kept: bool = False


def read(site: Site) -> Book:
    """What stands in the book now.

    Raises:
        InputError: it is damaged.
    """
    return read_at(site.shared)


def read_at(shared: Shared) -> Book:
    """`read`, of a controller's root.

    Raises:
        InputError: it is damaged.
        OSError: it is another user's.
    """
    return _read(shared.credentials)


@contextmanager
def held(site: Site) -> Iterator[Book]:
    """The book, for change: nobody else reads or writes it meanwhile, and the server is told under the same lock."""
    with _held(site.shared) as book:
        yield book


@contextmanager
def _held(shared: Shared) -> Iterator[Book]:
    path = shared.credentials
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        book = _read(path)
        yield book
        _write(path, book)


def restore(shared: Shared, db: Db) -> None:
    """Make every worker's user: on a server that has just started, before workers find it without.

    Raises:
        NotOffered: the server knows nothing of the kind, or refuses it to us.
        Unavailable: the server is away.
    """
    if shared.credentials.exists():
        _mend(shared)
        with _held(shared) as book:
            for id, account in book.accounts.items():
                access.put(db, id, account.digest, account.evaluations)


def _mend(shared: Shared) -> None:
    """Set a damaged book aside and begin anew: workers find their users gone, and register again."""
    path = shared.credentials
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _read(path)
        except InputError as error:
            aside = path.with_name(f"{path.name}.damaged")
            path.replace(aside)
            folders.write(path, dumps(Book()))
            again = "Whoever was revoked is to be revoked again: aeo workers revoke ID"
            log.error("%s; it was set aside as %s, and workers get new credentials. %s", error, aside, again)


def tell(site: Site, book: Book, id: str, evaluations: Mapping[str, float]) -> None:
    """Let a worker reach these evaluations and no others, within `held`.

    The book has more than the server in between, so that a crash or a failure is put right in the next round.

    Raises:
        NotOffered, Unavailable: see `aeo.store.access.put`.
    """
    account = book.accounts[id]
    account.evaluations, account.told = {**account.evaluations, **evaluations}, False
    save(site, book)
    access.put(site.db, id, account.digest, evaluations)
    account.evaluations, account.told = dict(evaluations), True


def save(site: Site, book: Book) -> None:
    """Write the book now, within `held`: before the server is told, so that a crash between them is put right."""
    _write(site.shared.credentials, book)


def check(site: Site, id: str) -> None:
    """See that a worker may register.

    Raises:
        Conflict: a person revoked it.
    """
    _check(read(site), id)


def _check(book: Book, id: str) -> None:
    if id in book.revoked:
        raise Conflict(
            f"The credentials of worker {id!r} were revoked by a person.",
            field="--worker-id",
            fix=f"Let it in again: aeo workers allow {id}",
        )


def issue(site: Site, info: WorkerInfo, *, again: bool = False) -> Given:
    """Make new credentials for a process that registers; connections with the old ones are cut.

    ``again``: it has some and was forgotten otherwise; it keeps them, if they are those of this very process.

    Raises:
        Conflict: a person revoked it, perhaps just now.
        InputError: the server cannot do it, and `OWN` is configured.
        Unavailable: the server is away.
    """
    config = site.config
    url = config.worker_broker_url or config.broker_url
    with held(site) as book:
        # Within the lock: who is revoked meanwhile must not be given anything.
        _check(book, info.id)
        account = book.accounts.get(info.id)
        if config.worker_credentials == SHARED:
            kept = again and account is None
            book.shared = "so configured"
            if book.accounts.pop(info.id, None) is not None:
                save(site, book)
                # If not now, then in the next round.
                with suppress(AeoError):
                    access.drop(site.db, info.id)
            return Given(broker_url=url, kept=kept, files=_files(site, book, info.id, again=kept))
        if again and account is not None and account.boot == info.boot:
            # Where the server does it no more, it gets the shared password below.
            with suppress(NotOffered):
                access.put(site.db, info.id, account.digest, account.evaluations)
                files = _files(site, book, info.id, again=True)
                return Given(broker_url=without_credentials(url), kept=True, files=files)
        password = secrets.token_urlsafe(24)
        evaluations = account.evaluations if account else _shares(site, info.id)
        made = Account(
            digest=hashlib.sha256(password.encode()).hexdigest(),
            boot=info.boot,
            evaluations=evaluations,
            past=account.past if account else {},
            ahead=account.ahead if account else {},
        )
        book.unnamed = tuple(one for one in book.unnamed if one != info.id)
        book.accounts[info.id] = made
        save(site, book)
        try:
            access.put(site.db, info.id, made.digest, evaluations)
            access.cut(site.db, info.id)
        except NotOffered as error:
            del book.accounts[info.id]
            book.shared = str(error)
            save(site, book)
            if config.worker_credentials == OWN:
                raise InputError(f"The broker gives no worker credentials of its own: {error}") from None
            kept = again and account is None
            return Given(broker_url=url, kept=kept, files=_files(site, book, info.id, again=kept))
        book.shared = ""
        files = _files(site, book, info.id)
    return Given(broker_url=own_url(url, access.user(site.db, info.id), password), files=files)


def _shares(site: Site, id: str) -> dict[str, float]:
    """Open evaluations that have a batch of a worker which has not ended: sent before it had an account."""
    return {
        evaluation: 0.0
        for evaluation in evaluations_store.open_ids(site.db)
        if any(
            item.batch.worker == id and item.state is not BatchState.ENDED
            for item in evaluations_store.batches(site.db, evaluation)
        )
    }


def _files(site: Site, book: Book, id: str, *, again: bool = False) -> str:
    """A new secret for a worker's files; "" where it has one ``again``, which is known here still."""
    if id not in book.accounts and id not in book.unnamed:
        book.unnamed = (*book.unnamed, id)
    known = again and id in modules.issued(site.shared)
    if known or not modules.offered(site.config, site.shared):
        return ""
    secret = modules.issue(site.shared, id)
    open_files(site, book)
    return secret


def open_files(site: Site, book: Book) -> None:
    """Have the controller's own rsync daemon let each worker reach what the book says, and nobody else anything.

    Raises:
        Unavailable: that cannot be written down.
    """
    if modules.offered(site.config, site.shared):
        modules.tell(site.shared, {id: _rights(book, id) for id in _known(book)})


def _known(book: Book) -> set[str]:
    return {*book.accounts, *book.unnamed} - set(book.revoked)


def _rights(book: Book, id: str) -> Rights:
    account = book.accounts.get(id)
    if account is None:
        return Rights(everything=True)
    ahead = frozenset(digest for one in account.ahead.values() for digest in one.digests)
    return Rights(evaluations=frozenset(account.evaluations), contents=ahead)


def own_url(url: str, user: str, password: str) -> str:
    """The broker's address with other credentials."""
    parts = urlsplit(without_credentials(url))
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc}"))


def without_credentials(url: str) -> str:
    """The broker's address alone."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def grant(site: Site, evaluation: str, workers: Iterable[str]) -> None:
    """Let these workers reach an evaluation; before they have a seat in it or are sent a batch of it.

    A worker whose user the server does not make is passed over: it has the shared password, or registers again.

    Raises:
        Unavailable: the server is away.
    """
    if not site.shared.credentials.exists():
        return
    with held(site) as book:
        ours = {id: book.accounts[id] for id in sorted(set(workers) & set(book.accounts))}
        for account in ours.values():
            if evaluation not in account.evaluations:
                account.evaluations[evaluation], account.told = 0.0, False
        save(site, book)
        for id, account in ours.items():
            try:
                access.put(site.db, id, account.digest, account.evaluations)
                account.told = True
            except NotOffered as error:
                log.warning("worker %s gets no right to %s: %s", id, evaluation, error)
        open_files(site, book)


def grant_ahead(site: Site, dataset: str, digests: Iterable[str], workers: Iterable[str]) -> None:
    """Let these workers fetch folders of a dataset; before they are asked to.

    Raises:
        Unavailable: that cannot be written down.
    """
    if not site.shared.credentials.exists():
        return
    with held(site) as book:
        for id in set(workers) & set(book.accounts):
            book.accounts[id].ahead[dataset] = Ahead(digests=tuple(digests), at=time.time())
        save(site, book)
        open_files(site, book)


def revoke(site: Site, id: str) -> bool:
    """Take a worker's credentials away, cut its connections, and keep it out until `allow`; False where it had none.

    Raises:
        Unavailable: the server is away; it is kept out already, and its user goes as soon as the server is back.
    """
    with held(site) as book:
        had = book.accounts.pop(id, None) is not None
        book.revoked[id] = time.time()
        book.unnamed = tuple(one for one in book.unnamed if one != id)
        save(site, book)
        open_files(site, book)
        if had:
            access.drop(site.db, id)
    return had


def allow(site: Site, id: str) -> bool:
    """Let a revoked worker register again; False where it was not revoked."""
    with held(site) as book:
        return book.revoked.pop(id, None) is not None


def _read(path: Path) -> Book:
    try:
        return loads(Book, path.read_bytes())
    except FileNotFoundError:
        return Book()
    except InputError as error:
        # Not begun anew unseen: it says who is to be kept out.
        fix = "Start the controller anew: it sets the file aside, and workers get new credentials."
        raise InputError(f"{path} is damaged: {error}", fix=fix) from None


def _write(path: Path, book: Book) -> None:
    text, there = dumps(book), path.exists()
    # It is held in each round, mostly without a change.
    if (path.read_text("utf-8") if there else dumps(Book())) != text:
        folders.write(path, text)
