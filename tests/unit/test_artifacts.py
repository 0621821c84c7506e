"""Files of a trial: nothing outside its folder, nothing loaded whole, the same text in whatever windows."""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import codec, live, segments
from aeo.artifacts import place as places
from aeo.artifacts import windows
from aeo.artifacts.folder import Folder
from aeo.artifacts.mirror import Mirror
from aeo.core.errors import InputError, NotFound
from aeo.executors import views
from aeo.executors.harbor.views import views as harbor_views
from aeo.redaction import Redactor

NONE = Redactor({})
KEY = "sk-0123456789abcdef"
SECRET = Redactor({"API_KEY": KEY})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "agent" / "deep").mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    (folder / "agent" / "deep" / "log.txt").write_text("one\ntwo\n")
    (tmp_path / "outside.txt").write_text("outside")
    return folder


@pytest.mark.parametrize(
    "name",
    ["../outside.txt", "agent/../../outside.txt", "/etc/passwd", "", ".", "agent//deep", "a\0b", "a\nb", "x/" * 2000],
)
def test_a_name_that_leads_out_is_refused(run: Path, name: str) -> None:
    for place in (Folder(run, NONE), Mirror(run, NONE)):
        with pytest.raises(InputError):
            place.read(name, 0, 10)
        with pytest.raises(InputError):
            place.extent(name)


def test_links_and_special_files_are_neither_listed_nor_opened(run: Path) -> None:
    (run / "link.txt").symlink_to("../outside.txt")
    (run / "inside.txt").symlink_to("result.json")
    (run / "way").symlink_to(run.parent)
    (run / "round").symlink_to(".")
    os.mkfifo(run / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run / "socket"))
    listener.close()
    (run / "odd\nname").write_text("x")
    place = Folder(run, NONE)
    assert [entry.name for entry in place.listing().entries] == ["agent/deep/log.txt", "result.json"]
    for name in ("link.txt", "inside.txt", "way/outside.txt", "round/result.json", "pipe", "socket", "agent", "none"):
        with pytest.raises(NotFound):
            place.read(name, 0, 10)
    assert place.read("agent/deep/log.txt", 4, 100) == b"two\n"


def test_a_root_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    place = Folder(tmp_path / "gone", NONE)
    assert place.listing().entries == ()
    with pytest.raises(NotFound):
        place.extent("x")


def test_a_listing_is_bounded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeo.artifacts.folder.MOST_FILES", 10)
    for number in range(30):
        (run / f"{number:02}").write_text("")
    listing = Folder(run, NONE).listing()
    assert listing.more
    assert len(listing.entries) <= 10


@given(st.lists(st.sampled_from(["é", "漢", "🙂", "line\n", "x" * 50, "\n"]), max_size=60), st.integers(1, 90))
def test_windows_forward_and_backward_give_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], limit: int
) -> None:
    folder, text = tmp_path_factory.mktemp("run"), "".join(parts)
    (folder / "log").write_text(text)
    place = Folder(folder, NONE)
    limit = max(limit, 4)  # less than a character cannot be shown whole
    forward, at = "", 0
    while at < len(text.encode()):
        window = windows.at(place, "log", at, limit=limit)
        assert window.end > window.begin == at
        forward, at = forward + window.text, window.end
    backward, end = "", None
    while end != 0 and text:
        window = windows.before(place, "log", end, limit=limit)
        assert window.begin < window.end
        backward, end = window.text + backward, window.begin
    assert forward == text
    assert backward == (text if text else "")
    assert b"".join(windows.text_stream(place, "log")).decode() == text


def test_a_secret_is_never_served_wherever_windows_are_cut(run: Path) -> None:
    content = f"a {KEY} b\n".encode() * 40
    (run / "log").write_bytes(content)
    place = Folder(run, SECRET)
    for limit in (5, 17, 18, 19, 64):
        at, shown = 0, ""
        while at < len(content):
            window = windows.at(place, "log", at, limit=limit)
            shown, at = shown + window.text, window.end
        assert shown == "a ${API_KEY} b\n" * 40
    assert windows.whole(place, "log", limit=10_000) == b"a ${API_KEY} b\n" * 40
    assert b"".join(windows.stream(place, "log")) == b"a ${API_KEY} b\n" * 40


def test_a_growing_file_leaves_half_a_character_for_later(run: Path) -> None:
    (run / "log").write_bytes("é".encode() + "漢".encode()[:2])
    window = windows.at(Folder(run, NONE), "log", 0, grows=True)
    assert (window.text, window.end) == ("é", 2)


def test_invalid_utf8_is_shown(run: Path) -> None:
    (run / "log").write_bytes(b"ok \xff\xfe end\n")
    place = Folder(run, NONE)
    assert windows.before(place, "log").text == "ok \ufffd\ufffd end\n"
    assert b"".join(windows.text_stream(place, "log")).decode() == "ok \ufffd\ufffd end\n"


def test_a_file_of_a_gigabyte_is_read_by_range_in_little_memory(run: Path) -> None:
    size = 1 << 30
    with (run / "huge.log").open("wb") as file:
        file.truncate(size - 6)
        file.seek(size - 6)
        file.write(b"\nlast\n")
    place = Folder(run, SECRET)
    tracemalloc.start()
    try:
        window = windows.before(place, "huge.log")
        middle = windows.at(place, "huge.log", size // 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.size == size
    assert window.text.endswith("last\n")
    assert size // 2 == middle.begin < middle.end <= size // 2 + windows.USUAL
    assert peak < 2 * 1024 * 1024
    with pytest.raises(InputError, match="larger"):
        windows.whole(place, "huge.log", limit=1024)


class Growing:
    """A followed file and what its segments show on the other side."""

    def __init__(self, folder: Path, redactor: Redactor = NONE):
        self.folder, self.path = folder / "shown", folder / "log"
        self.folder.mkdir()
        self.followed, self.looks = live._Followed(1, redactor), 0

    def look(self, budget: int = live.FILE_BYTES) -> bool:
        piece = self.followed.piece(self.path, budget)
        if piece is not None and piece.content:
            (self.folder / segments.name(1, piece.generation, piece.offset)).write_bytes(piece.content)
        index = segments.Index(files={"log": self.followed.shown()})
        self.looks += 1
        (self.folder / segments.index_name(self.looks)).write_text(codec.dumps(index))
        return piece is not None

    @property
    def mirror(self) -> Mirror:
        return Mirror(self.folder, NONE, key="token")

    @property
    def text(self) -> str:
        begin, end = self.mirror.extent("log")
        return self.mirror.read("log", begin, end - begin).decode()


@given(st.lists(st.sampled_from([KEY, KEY[:5], KEY[5:], "text\n", "x"]), max_size=20), st.integers(1, 30))
def test_a_growing_file_is_shown_piece_by_piece(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], budget: int
) -> None:
    growing = Growing(tmp_path_factory.mktemp("run"), SECRET)
    growing.path.touch()
    for part in parts:
        with growing.path.open("a") as file:
            file.write(part)
        growing.look(budget)
        assert KEY not in growing.text
    while growing.look(budget):
        pass
    whole = SECRET.text("".join(parts))
    assert whole.startswith(growing.text)
    assert len(whole) - len(growing.text) < len(KEY)
    assert growing.mirror.read("log", 3, 4).decode() == growing.text[3:7]


def test_a_file_written_anew_or_cut_is_shown_anew(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.path.write_text("first\n" * 100)
    growing.look()
    before = growing.mirror.generation("log")
    growing.path.write_text("second\n" * 200)
    growing.look()
    assert growing.text == "second\n" * 200
    assert growing.mirror.generation("log") != before
    os.truncate(growing.path, 7)
    growing.look()
    assert growing.text == "second\n"
    assert not growing.look()


def test_of_a_large_file_the_end_is_shown_and_no_rest_of_a_secret(tmp_path: Path) -> None:
    growing = Growing(tmp_path, SECRET)
    size = live.WHOLE + 1000
    content = bytearray(b"x" * size)
    # Across the border of what is shown.
    border = size - live.END
    content[border - 5 : border - 5 + len(KEY)] = KEY.encode()
    growing.path.write_bytes(bytes(content))
    growing.look()
    begin, end = growing.mirror.extent("log")
    assert begin == border
    assert end - begin <= live.END + 20
    assert growing.text.strip("x") == "${API_KEY}"
    with growing.path.open("ab") as file:
        file.write(b"\nnew\n")
    growing.look()
    assert growing.text.endswith("x\nnew\n")


def test_an_index_that_is_just_arriving_is_not_the_one_that_counts(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.path.write_text("first\n")
    growing.look()
    (growing.folder / segments.index_name(9)).write_text('{"files": {"lo')
    assert growing.text == "first\n"


def test_segments_nobody_reads_any_more_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeo.artifacts.mirror._MANY", 5)
    monkeypatch.setattr(live, "KEPT", 30)
    growing = Growing(tmp_path)
    for number in range(20):
        with growing.path.open("a") as file:
            file.write(f"line {number:04}\n")
        growing.look()
    kept = growing.text
    growing.mirror.prune()
    assert growing.text == kept
    assert kept.endswith("line 0019\n")
    assert len(list(growing.folder.iterdir())) <= 4 + 3


@pytest.mark.parametrize("text", ["", "no json", '{"files": {"../x": {"number": 1, "generation": 1}}}', "[" * 10_000])
def test_an_index_that_is_none_shows_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / segments.index_name(1)).write_text(text)
    assert Mirror(tmp_path, NONE).listing().entries == ()


def test_names_say_what_is_what() -> None:
    names = [
        *("agent/trajectory.json", "agent/trajectory.cont-1.json", "agent/run.log", "trial.log", "result.json"),
        *("verifier/ctrf.json", "verifier/reward.txt", "verifier/test-stdout.txt", "artifacts/a/b.png"),
    ]
    found = views.plain(names)
    (part,) = found.parts
    assert part.trajectories == ("agent/trajectory.json", "agent/trajectory.cont-1.json")
    assert part.reports == ("verifier/ctrf.json",)
    assert part.verifier == ("verifier/test-stdout.txt", "verifier/reward.txt")
    assert part.artifacts == ("artifacts/a/b.png",)
    assert found.logs == ("agent/run.log", "trial.log", "verifier/reward.txt", "verifier/test-stdout.txt")
    assert found.error == ""
    steps = harbor_views([*(f"steps/one/{name}" for name in names), "exception.txt", "user-agent/trajectory.json"])
    assert [part.name for part in steps.parts] == ["", "one"]
    assert steps.parts[0].trajectories == ("user-agent/trajectory.json",)
    assert steps.parts[1].trajectories[0] == "steps/one/agent/trajectory.json"
    assert steps.error == "exception.txt"


def test_a_path_of_plain_parts_is_one() -> None:
    assert places.parts_of("a b/ü/.hidden") == ["a b", "ü", ".hidden"]
