"""A worker fetches ahead of a run: task folders by the way a trial's travel, and the images that tasks name.

A person orders it on the controller; the orders lie below this worker's own keys (see `aeo.store.prefetches`) and are
carried out by a thread beside the trials, a few things at once. What is here is skipped, so an order can be given again
at any time, and one that was interrupted goes on. It never fills a disk up to where trials would suffer: it checks the
room first, and what was fetched for a run that did not come gives way where the disk is nearly full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil

from aeo import contents, executors, workers
from aeo.celery import messages_running
from aeo.core.errors import AeoError, TransferFailed, Unavailable
from aeo.core.words import count
from aeo.executors.supplies import Image, Needed, Supplies, supplies_of
from aeo.site import WorkerSite
from aeo.store import prefetches
from aeo.store.prefetches import Failure, Folder, Order, PrefetchState, Progress

log = logging.getLogger(__name__)

#: Seconds between two looks for orders, and between two looks whether one still stands.
LOOK_SECONDS, TICK_SECONDS = 2.0, 0.5
#: Seconds between two looks whether the disk is nearly full.
ROOM_SECONDS = 30.0
#: Task folders fetched at once; images, with trials beside them and without.
FOLDERS_AT_ONCE, IMAGES_AT_ONCE, IMAGES_ALONE = 2, 1, 2
#: Bytes that must be free for an image, whose size is not known before.
IMAGE_ROOM = 1024 * workers.MIB
#: Seconds between two tries of what may yet work, and after which it is given up when nothing came meanwhile.
AGAIN_SECONDS, GIVE_UP_SECONDS = 5.0, 1800.0
#: Seconds that the end of a worker waits for what is being fetched to be given up.
END_SECONDS = 10.0
#: Failures that are told one by one.
MOST_TOLD = 50

T = TypeVar("T")


def keep(site: WorkerSite, stop: threading.Event) -> None:
    """Carry out orders until ``stop``."""
    room_at = 0.0
    while not stop.wait(LOOK_SECONDS):
        try:
            if time.monotonic() >= room_at:
                room_at = time.monotonic() + ROOM_SECONDS
                give_way(site)
            for order in prefetches.open_orders(site.db, site.config.worker_id)[:1]:
                carry_out(site, order, stop)
        except AeoError as error:
            log.debug("nothing is fetched ahead now: %s", error)
        except Exception:  # it must not end for a fault of today
            log.exception("could not fetch ahead")


def carry_out(site: WorkerSite, order: Order, stop: threading.Event) -> Progress:
    """Carry out one order, as far as it stands and ``stop`` is not set; returns what was told last.

    Raises:
        Unavailable: the store is away; the order is looked at again later.
    """
    log.info("fetching ahead: %d tasks of %s", order.total, order.dataset)
    work = _Work(site, order, stop)
    try:
        folders = prefetches.folders(site.db, site.config.worker_id, order)
        _bring_folders(work, folders)
        if order.images and not work.halt.is_set():
            _bring_images(work, [site.local.task(folder.digest, folder.name) for folder in folders])
    except Unavailable:
        raise
    except Exception as error:  # told and ended: it would be met again, and hold up those after it
        log.exception("an order cannot be carried out")
        work.fail("the order", f"{type(error).__name__}: {error}")
    finally:
        work.halt.set()
    return work.finish()


def give_way(site: WorkerSite) -> tuple[str, ...]:
    """Where the disk is nearly full, remove what was fetched ahead and never used, the oldest first; their digests."""
    if not workers.low_disk(site.local.root):
        return ()
    marks = [mark for mark in site.local.tasks.glob("*/.ahead") if mark.is_file()]
    gone = []
    for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime):
        if contents.drop(site.local, mark.parent.name, time.time() + 1, ahead=True):
            gone.append(mark.parent.name)
        if not workers.low_disk(site.local.root):
            break
    if gone:
        log.warning("the disk is nearly full: task copies fetched ahead and never used are removed: %d", len(gone))
    return tuple(gone)


def lacking(path: Path, wanted: int, watermark: float) -> str:
    """Say why ``wanted`` bytes more would not leave the disk of ``path`` as trials need it; "" if they would."""
    usage = psutil.disk_usage(str(path))
    kept = int(max(min(workers.LOW_DISK_BYTES, usage.total * workers.LOW_DISK_SHARE), usage.total * (1 - watermark)))
    missing = wanted + kept - usage.free
    if missing <= 0:
        return ""
    return (
        f"no room on the disk of {path}: {_mib(wanted)} MiB to come, {_mib(kept)} MiB have to stay free and "
        f"{_mib(usage.free)} MiB are; {_mib(missing)} MiB are missing"
    )


def _mib(count: float) -> int:
    return -int(-count // workers.MIB)


class _Work:
    """One order being carried out, and what is told of it."""

    def __init__(self, site: WorkerSite, order: Order, stop: threading.Event):
        self.site, self.order, self._stop = site, order, stop
        #: Set when it is to end, for whatever reason.
        self.halt = threading.Event()
        self.withdrawn = False
        self.last_good = time.monotonic()
        self._room_at = self.last_good + ROOM_SECONDS
        self._lock = threading.Lock()
        self._now = Progress(order=order.id, state=PrefetchState.RUNNING, tasks_total=order.total)
        self._said: Progress | None = None

    def note(self, **changes: object) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)  # type: ignore[arg-type]

    def one_task(self) -> None:
        self.last_good = time.monotonic()
        with self._lock:
            self._now = replace(self._now, tasks_done=self._now.tasks_done + 1, note="")

    def one_image(self) -> None:
        self.last_good = time.monotonic()
        with self._lock:
            self._now = replace(self._now, images_done=self._now.images_done + 1)

    def fail(self, what: str, why: object) -> None:
        log.warning("fetching ahead, %s: %s", what, why)
        failure = Failure(what=what, why=str(why)[:500])
        with self._lock:
            told = (*self._now.failures, failure)[:MOST_TOLD]
            self._now = replace(self._now, failed=self._now.failed + 1, failures=told)

    def tick(self) -> None:
        """Tell what is new, and see whether the order still stands. A store that is away changes nothing."""
        if self._stop.is_set():
            self.halt.set()
        if time.monotonic() >= self._room_at:
            self._room_at = time.monotonic() + ROOM_SECONDS
            give_way(self.site)
        with suppress(AeoError):
            if not prefetches.is_wanted(self.site.db, self.site.config.worker_id, self.order):
                self.withdrawn = True
                self.halt.set()
            self._tell()

    def _tell(self) -> None:
        now = self._now
        if now != self._said:
            prefetches.tell(self.site.db, self.site.config.worker_id, self.order.dataset, now)
            self._said = now

    def finish(self) -> Progress:
        """Say how it ended; nothing where this process ends, as the next one goes on."""
        if self.withdrawn:
            self.note(state=PrefetchState.CANCELLED, note="")
        elif not self._stop.is_set():
            self.note(state=PrefetchState.FAILED if self._now.failed else PrefetchState.DONE, note="")
        self._tell()
        return self._now


def _bring_folders(work: _Work, folders: Sequence[Folder]) -> None:
    site = work.site
    missing = [folder for folder in folders if not site.local.task(folder.digest, folder.name).exists()]
    site.local.tasks.mkdir(parents=True, exist_ok=True)
    why = lacking(site.local.root, sum(folder.size for folder in missing), site.config.clean_above)
    if why and missing:
        work.fail(count(len(missing), "task"), why)
        work.halt.set()
        return

    def bring(folder: Folder) -> None:
        here = site.local.task(folder.digest, folder.name).exists()
        # Looked at anew, as others fill the disk meanwhile.
        if not here and (why := lacking(site.local.root, folder.size, site.config.clean_above)):
            raise Unavailable(why)
        contents.hold(site, folder.digest, folder.name, gives_up=work.halt.is_set, ahead=True)
        work.one_task()

    _each(work, folders, FOLDERS_AT_ONCE, bring, name=lambda folder: folder.name)


def _bring_images(work: _Work, folders: Sequence[Path]) -> None:
    here = [folder for folder in folders if folder.is_dir()]
    supplies = supplies_of(executors.load(work.order.executor))
    if supplies is None:
        work.note(images_total=0)
        return
    work.note(note="looking which images the tasks name")
    needed = _needed(work, supplies, here)
    if needed is None:
        return
    for name, why in needed.problems.items():
        work.fail(f"images of {name}", why)
    work.note(images_total=len(needed.images), note="")
    places = [place for place in supplies.places() if place.exists()] or [work.site.local.root]
    at_once = IMAGES_AT_ONCE if messages_running() else IMAGES_ALONE
    _each(
        work,
        needed.images,
        at_once,
        lambda image: _bring_image(work, supplies, places, image),
        name=lambda image: f"image {image.name}",
    )


def _needed(work: _Work, supplies: Supplies, folders: Sequence[Path]) -> Needed | None:
    """What the tasks need; None where that cannot be said, or is not wanted any more."""
    found: list[Needed] = []

    def look() -> None:
        try:
            found.append(supplies.needed(folders))
        except AeoError as error:
            work.fail("images", error)
        except Exception as error:  # a plug-in's fault
            log.exception("it cannot be said which images are needed")
            work.fail("images", f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=look, name="fetch ahead", daemon=True)
    thread.start()
    while thread.is_alive() and not work.halt.is_set():
        work.tick()
        thread.join(TICK_SECONDS)
    return found[0] if found and not work.halt.is_set() else None


def _bring_image(work: _Work, supplies: Supplies, places: Sequence[Path], image: Image) -> None:
    if not supplies.is_here(image):
        # With trials, memory comes first to them.
        while work.site.crowded() and not work.halt.wait(AGAIN_SECONDS):
            work.note(note=f"waits: {work.site.crowded()}")
        for place in places:
            if why := lacking(place, IMAGE_ROOM, work.site.config.clean_above):
                raise Unavailable(why)
        if work.halt.is_set():
            return
        work.note(note=f"{'building' if image.built else 'pulling'} {image.name}")
        supplies.bring(image, work.halt)
    work.one_image()


def _each(
    work: _Work, items: Sequence[T], at_once: int, bring: Callable[[T], None], *, name: Callable[[T], str]
) -> None:
    """Bring all of them, a few at once; what may yet work is tried again at the end."""
    waiting = deque(items)
    running: set[int] = set()
    lock = threading.Lock()

    def take() -> T | None:
        with lock:
            if waiting:
                running.add(threading.get_ident())
                return waiting.popleft()
            return None

    def work_on() -> None:
        while not work.halt.is_set():
            item = take()
            if item is None:
                if not running or work.halt.wait(TICK_SECONDS):
                    return
                continue
            try:
                _one(work, item, bring, name, waiting)
            finally:
                running.discard(threading.get_ident())

    threads = [threading.Thread(target=work_on, name="fetch ahead", daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            work.tick()
            thread.join(TICK_SECONDS)


def _one(work: _Work, item: T, bring: Callable[[T], None], name: Callable[[T], str], waiting: deque[T]) -> None:
    try:
        bring(item)
    except TransferFailed as error:
        if work.halt.is_set():
            return
        if error.permanent or time.monotonic() - work.last_good > GIVE_UP_SECONDS:
            work.fail(name(item), error)
            return
        work.note(note=f"trying again: {error}"[:300])
        waiting.append(item)
        work.halt.wait(AGAIN_SECONDS)
    except (AeoError, OSError) as error:
        if not work.halt.is_set():
            work.fail(name(item), error)
    except Exception as error:
        log.exception("could not fetch %s ahead", name(item))
        work.fail(name(item), f"{type(error).__name__}: {error}")
