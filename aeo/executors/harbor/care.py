"""What Harbor's trials need of a machine, see `aeo.executors.care`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from aeo.core.condition import Condition, fault, ok, warning
from aeo.core.errors import Unavailable
from aeo.executors.harbor import engine, images
from aeo.executors.harbor.python import HARBOR_VERSION, harbor_python


class HarborCare:
    """Looks after a machine that runs Harbor's trials."""

    def conditions(self, local_root: Path, slots: int) -> Iterator[Condition]:
        """Judge Harbor itself and the Docker engine."""
        yield version()
        if slots:
            yield from engine.judge(engine.measure(local_root), slots)

    def folders(self) -> Sequence[Path]:
        """Where the engine of this machine keeps images and containers."""
        root = engine.ask("info", "--format", "{{.DockerRootDir}}").out.strip()
        # An engine elsewhere names a folder of that machine.
        here = os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")
        return (Path(root),) if here and root.startswith("/") and os.access(root, os.F_OK) else ()

    def reclaim(self, local_root: Path, idle_seconds: float) -> Sequence[str]:
        """Remove images of trials."""
        return images.reclaim(local_root, idle_seconds)


def version() -> Condition:
    """Judge the Harbor of this machine."""
    try:
        found = harbor_python(create=False)
    except Unavailable as error:
        if os.environ.get("AEO_HARBOR_PYTHON"):
            fix = f"Point AEO_HARBOR_PYTHON at a Python that has harbor=={HARBOR_VERSION}, or unset it."
            return fault("harbor", str(error).rstrip("."), fix)
        text = f"Harbor {HARBOR_VERSION} is not here; the first worker or evaluation gets it from PyPI"
        return warning("harbor", text, f"Get it now: `uv tool install harbor=={HARBOR_VERSION}`.")
    if found.version != HARBOR_VERSION:
        text = f"{found.path} has Harbor {found.version}; AEO works with {HARBOR_VERSION}"
        fix = f"`{found.path} -m pip install harbor=={HARBOR_VERSION}`, or unset AEO_HARBOR_PYTHON."
        return fault("harbor", text, fix)
    return ok("harbor", f"{found.version} in {found.path}")
