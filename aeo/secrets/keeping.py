"""What a worker does while a trial of its has secrets: nothing of them is left in words, logs and files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aeo import logs, redaction
from aeo.core.errors import ExecutorFailed, Unavailable
from aeo.redaction import Redactor
from aeo.transfer import tree

log = logging.getLogger(__name__)


@contextmanager
def kept(values: Mapping[str, str], trial_dir: Path) -> Iterator[None]:
    """Around a run: take these values out of its errors, of what is logged meanwhile, and of what it leaves.

    The controller does the same with what arrives; but by then a secret may be another one, and a file that is too
    large to travel stays here.
    """
    hide = Redactor(values)
    if not hide:
        yield
        return
    with logs.without(hide):
        try:
            yield
        except (ExecutorFailed, Unavailable) as error:
            kind = ExecutorFailed if isinstance(error, ExecutorFailed) else Unavailable
            raise kind(hide.text(str(error))) from None
        except Exception as error:
            # Its traceback would be logged, and kept as the batch's result, by whoever knows nothing of secrets.
            log.exception("the executor failed")
            raise RuntimeError(hide.text(f"{type(error).__name__}: {error}")) from None
        finally:
            _clean(hide, trial_dir)


def _clean(hide: Redactor, folder: Path) -> None:
    draft = folder.with_name(f"{folder.name}.redacting")
    try:
        files = tree.read(folder, odd_names=True).files
    except OSError as error:
        log.warning("%s cannot be looked through for secrets: %s", folder.name, error)
        return
    for name in files:
        try:
            if redaction.holding(hide, folder, [name]):
                redaction.rewrite(hide, folder / name, draft)
        except OSError as error:
            # What cannot be read does not travel; what could not be written is looked at again where it arrives.
            log.warning("%s of %s cannot be looked through for secrets: %s", name, folder.name, error)
    draft.unlink(missing_ok=True)
