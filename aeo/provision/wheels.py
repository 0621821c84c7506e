"""Packages made of what runs here: AEO is on no registry, and some machines reach none.

A wheel of a package that is installed is its files again, in one order and with one time, so that the same files always
make the same wheel.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

from aeo import __version__
from aeo.core.errors import Unavailable

NAME = "agent-eval-orchestrator"
_PACKAGES = ("aeo", "webapp")
#: Packing computes for the most part, outside of the interpreter.
_AT_ONCE = 4
_TIME = (1980, 1, 1, 0, 0, 0)
#: Said of an installation, not of the package.
_NOT_PACKED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"\bextra\s*==\s*['\"]([^'\"]+)")


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A package in a file."""

    path: Path
    #: First letters of its digest.
    mark: str


def of_aeo(folder: Path) -> Wheel:
    """Make a wheel of the AEO that runs here, from its source tree or from where it is installed.

    Raises:
        Unavailable: neither is there.
    """
    # The program beside which this file lies: an installation of another source tree may be on the path as well.
    source = Path(__file__).resolve().parents[2]
    if (source / "pyproject.toml").is_file() and (source / "deploy" / "systemd").is_dir():
        info, files = _of_source(source)
    else:
        installed = _installed(NAME)
        if installed is None:
            raise Unavailable(
                "AEO is not installed here as a package, so none can be made of it. Install it with uv or pip."
            )
        info, files = _of_installed(installed)
    name = f"{NAME.replace('-', '_')}-{__version__}"
    return _write(folder, f"{name}-py3-none-any.whl", f"{name}.dist-info", info, files)


def needed() -> list[Distribution]:
    """What AEO needs of what is installed here, with what that needs in turn."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(_requirements())
    while waiting:
        text = waiting.pop()
        match = _REQUIREMENT.match(text)
        # What only another system needs is not here, or does no harm.
        one = _installed(_normal(text)) if match else None
        if match is None or one is None:
            continue
        found[_normal(text)] = one
        extras = {_normal(name) for name in (match[2] or "").split(",") if name.strip()}
        for extra in {"", *extras} - {extra for name, extra in seen if name == _normal(text)}:
            seen.add((_normal(text), extra))
            waiting += [line for line in one.requires or () if _extra(line) == extra]
    return [found[name] for name in sorted(found)]


def constraints() -> str:
    """The versions that run here, as a constraints file; those that AEO itself pins are left to it."""
    pinned = {_normal(text) for text in _requirements() if "==" in text.partition(";")[0]}
    lines = [f"{_normal(one.name)}=={one.version}" for one in needed() if _normal(one.name) not in pinned]
    return "\n".join(lines) + "\n"


def of_needed(folder: Path) -> list[Path]:
    """Make a wheel of each package that AEO needs; those that are in ``folder`` already are taken as they are.

    Raises:
        Unavailable: one was not installed as a wheel.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda one: _of(one, folder), needed()))


def _of(one: Distribution, folder: Path) -> Path:
    said = one.read_text("WHEEL")
    if said is None or one.files is None:
        raise Unavailable(f"{one.name} is not installed as a package here, so it cannot be sent.")
    name = f"{re.sub(r'[-_.]+', '_', one.name)}-{one.version}"
    path = folder / f"{name}-{_tags(said)}.whl"
    if path.is_file():
        return path
    info, files = _of_installed(one)
    return _write(folder, path.name, f"{name}.dist-info", info, files).path


def _tags(said: str) -> str:
    tags = [line.partition(":")[2].strip().split("-") for line in said.splitlines() if line.startswith("Tag:")]
    return "-".join(".".join(sorted({tag[place] for tag in tags})) for place in range(3))


_Content = Path | bytes


def _of_installed(one: Distribution) -> tuple[dict[str, _Content], dict[str, _Content]]:
    """The package's descriptions and its files, by their places in a wheel."""
    info: dict[str, _Content] = {}
    files: dict[str, _Content] = {}
    made_anew = {entry.name for entry in one.entry_points if entry.group in ("console_scripts", "gui_scripts")}
    data = f"{re.sub(r'[-_.]+', '_', one.name)}-{one.version}.data"
    for item in one.files or ():
        place = PurePosixPath(item)
        source = Path(str(one.locate_file(item)))
        if "__pycache__" in place.parts or place.suffix == ".pyc":
            continue
        if place.parts[0].endswith(".dist-info"):
            if place.name not in _NOT_PACKED:
                info["/".join(place.parts[1:])] = source
        elif place.parts[0] != "..":
            files[str(place)] = source
        elif source.parent.name == "bin":
            if source.name not in made_anew:
                files[f"{data}/scripts/{source.name}"] = source
        else:
            files[f"{data}/data/{source.resolve().relative_to(Path(sys.prefix).resolve())}"] = source
    return info, files


def _of_source(root: Path) -> tuple[dict[str, _Content], dict[str, _Content]]:
    project = _project(root)
    files: dict[str, _Content] = {
        str(path.relative_to(root)): path
        for package in _PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    for path in sorted((root / "deploy" / "systemd").iterdir()):
        files[f"aeo/units/{path.name}"] = path
    files["aeo/units/env.example"] = root / "deploy" / "env.example"
    extras: Mapping[str, Sequence[str]] = project.get("optional-dependencies", {})
    lines = [
        "Metadata-Version: 2.3",
        f"Name: {NAME}",
        f"Version: {__version__}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {text}" for text in project["dependencies"]),
        *(f"Provides-Extra: {name}" for name in extras),
        *(f"Requires-Dist: {text} ; extra == '{name}'" for name, texts in extras.items() for text in texts),
    ]
    groups: dict[str, Mapping[str, str]] = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    entries = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in items.items()) for name, items in groups.items()
    )
    wheel = "Wheel-Version: 1.0\nGenerator: aeo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info: dict[str, _Content] = {
        "METADATA": ("\n".join(lines) + "\n").encode(),
        "WHEEL": wheel.encode(),
        "entry_points.txt": entries.encode(),
        "licenses/LICENSE": root / "LICENSE",
    }
    return info, files


def _project(root: Path) -> dict[str, Any]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, Any] = toml.loads((root / "pyproject.toml").read_text())["project"]
    return found


def _requirements() -> list[str]:
    source = Path(__file__).resolve().parents[2]
    if (source / "pyproject.toml").is_file():
        return list(_project(source)["dependencies"])
    installed = _installed(NAME)
    return [text for text in (installed.requires or [] if installed else []) if not _extra(text)]


def _write(
    folder: Path, name: str, info_folder: str, info: Mapping[str, _Content], files: Mapping[str, _Content]
) -> Wheel:
    """Write a wheel into ``folder``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with drafted(folder / name) as draft:
        mark = _pack(draft, info_folder, info, files)
    return Wheel(path=folder / name, mark=mark)


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A file to be written that takes its place when it is whole; several may make the same at once."""
    made, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(made)
    try:
        yield Path(draft)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _pack(draft: Path, info_folder: str, info: Mapping[str, _Content], files: Mapping[str, _Content]) -> str:
    """Write a wheel; returns the first letters of its digest."""
    everything = {**files, **{f"{info_folder}/{place}": content for place, content in info.items()}}
    record, total = [], hashlib.sha256()
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as pack:
        for place, content, mode in _contents(everything):
            digest = hashlib.sha256(content).digest()
            record.append(
                f"{_cell(place)},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(content)}"
            )
            total.update(f"{place}\0{mode:o}\0".encode() + digest)
            _put(pack, place, content, mode)
        record.append(f"{info_folder}/RECORD,,")
        _put(pack, f"{info_folder}/RECORD", ("\n".join(record) + "\n").encode(), 0o644)
    return total.hexdigest()[:10]


def _contents(everything: Mapping[str, _Content]) -> Iterator[tuple[str, bytes, int]]:
    for place in sorted(everything):
        content = everything[place]
        if isinstance(content, bytes):
            yield place, content, 0o644
        else:
            yield place, content.read_bytes(), 0o755 if content.stat().st_mode & 0o100 else 0o644


def _put(pack: zipfile.ZipFile, place: str, content: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(place, _TIME)
    entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
    pack.writestr(entry, content)


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def _normal(text: str) -> str:
    found = _REQUIREMENT.match(text)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""


def _extra(text: str) -> str:
    """The extra that a requirement is of; "" where it is always one."""
    found = _EXTRA.search(text.partition(";")[2])
    return _normal(found[1]) if found else ""


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        # Under another spelling.
        return next((one for one in distributions() if one.name and _normal(one.name) == name), None)
