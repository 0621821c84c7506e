"""What is published to workers is what lies in the task's folder, and nothing a link in it leads to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from aeo import contents
from aeo.core.errors import InputError
from aeo.core.model import ContentFolder
from aeo.layout import Shared


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    made = Shared(root=tmp_path / "shared", jobs_dir=tmp_path / "jobs")
    made.tasks.mkdir(parents=True)
    return made


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "set" / "task"
    (folder / "environment" / "data").mkdir(parents=True)
    (folder / "task.toml").write_text("x")
    (folder / "environment" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "environment" / "run.sh").chmod(0o755)
    (folder / "environment" / "data" / "file").write_text("data")
    (tmp_path / "set" / "secret").write_text("the controller's own")
    return folder


def publish(shared: Shared, task: Path) -> Path:
    return contents.publish(shared, ContentFolder(digest="d1", source=str(task), name="task"))


def refused(shared: Shared, task: Path) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        publish(shared, task)
    assert list(shared.tasks.iterdir()) == []
    return {problem.field: problem.message for problem in caught.value.problems}


def test_links_inside_are_copied_as_what_they_mean(shared: Shared, task: Path) -> None:
    (task / "environment" / "same").symlink_to("run.sh")
    (task / "environment" / "absolute").symlink_to(task / "task.toml")
    (task / "environment" / "folder").symlink_to("data")
    (task / "environment" / "chain").symlink_to("same")
    published = publish(shared, task) / "environment"
    assert not [path for path in published.rglob("*") if path.is_symlink()]
    assert (published / "same").read_text() == (published / "chain").read_text() == "#!/bin/sh\n"
    assert os.access(published / "same", os.X_OK)
    assert (published / "absolute").read_text() == "x"
    assert (published / "folder" / "file").read_text() == "data"


def test_a_task_that_is_itself_a_link_is_published(shared: Shared, task: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(task)
    assert (publish(shared, tmp_path / "link") / "environment" / "data" / "file").read_text() == "data"


@pytest.mark.parametrize("target", ["../../secret", "/etc/passwd", "../../../set", "/dev/zero", "data/../../../secret"])
def test_a_link_that_leads_outside_is_refused(shared: Shared, task: Path, target: str) -> None:
    (task / "environment" / "x").symlink_to(target)
    assert refused(shared, task) == {str(task / "environment" / "x"): "is a link that leads out of the task's folder."}


@pytest.mark.parametrize("target", ["nothing", "x", "../missing/file"])
def test_a_link_that_leads_nowhere_is_refused(shared: Shared, task: Path, target: str) -> None:
    (task / "environment" / "x").symlink_to(target)
    assert "leads nowhere" in refused(shared, task)[str(task / "environment" / "x")]


@pytest.mark.parametrize("target", [".", "..", "../environment"])
def test_a_link_in_a_circle_is_refused(shared: Shared, task: Path, target: str) -> None:
    (task / "environment" / "x").symlink_to(target)
    assert "that it lies in" in refused(shared, task)[str(task / "environment" / "x")]


def test_pipes_and_sockets_are_refused_all_at_once(shared: Shared, task: Path) -> None:
    os.mkfifo(task / "pipe")
    (task / "environment" / "to-pipe").symlink_to("../pipe")
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(task)  # its path would be too long
        made.bind("socket")
        os.chdir(here)
        found = refused(shared, task)
    assert found.keys() == {str(task / name) for name in ("pipe", "socket", "environment/to-pipe")}
    assert set(found.values()) == {"is neither a file nor a folder."}


def test_a_folder_that_is_gone_is_said(shared: Shared, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read whole"):
        publish(shared, tmp_path / "gone")
