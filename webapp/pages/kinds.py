"""What a trial's files and phases are, for people: pictures by content, text by name, words for the rest."""

from __future__ import annotations

from flask_babel import gettext as _

#: Bytes at the start of a file that tell a picture.
HEAD = 16
_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_TEXT = (".txt", ".log", ".json", ".jsonl", ".md", ".xml", ".yaml", ".yml", ".csv", ".out", ".err", ".html", ".toml")
_LONGEST_LABEL = 60


def picture(head: bytes) -> str:
    """The type of a picture that every browser shows and none runs anything of; empty for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _PICTURES if head.startswith(start)), "")


def is_text(name: str) -> bool:
    """Whether a file's name says that it is text."""
    return name.endswith(_TEXT)


def phases() -> dict[str, str]:
    """Words for the phases of a trial."""
    return {
        "start": _("starts"),
        "environment": _("environment"),
        "agent_setup": _("agent setup"),
        "agent": _("agent"),
        "verifier": _("verifier"),
        "cancelling": _("is being cancelled"),
    }


def statuses() -> dict[str, str]:
    """Words for the results of tests."""
    return {
        "failed": _("failed"),
        "passed": _("passed"),
        "skipped": _("skipped"),
        "pending": _("not run"),
        "other": _("other"),
    }


def label(text: str) -> str:
    """The first line of a text, short enough to stand in a line."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST_LABEL else line[:_LONGEST_LABEL] + "…"
