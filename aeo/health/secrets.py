"""The secrets of a controller: whether they can be opened."""

from __future__ import annotations

from collections.abc import Iterator

from aeo.config import Config
from aeo.core.condition import Condition, fault, ok
from aeo.core.errors import AeoError
from aeo.layout import Shared
from aeo.secrets import vault
from aeo.secrets.vault import Root


def judge(config: Config, shared: Shared) -> Iterator[Condition]:
    """Judge them, where there are any."""
    root = Root(config=config, shared=shared)
    try:
        count = len(vault.values(root))
    except AeoError as error:
        fix = "Trials that need one wait until then; see `aeo secrets`."
        yield fault("secrets", str(error).rstrip("."), fix)
    else:
        if count:
            yield ok("secrets", f"{count}, with their key elsewhere")
