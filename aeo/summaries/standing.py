"""How far the summaries follow the store."""

from __future__ import annotations

from dataclasses import dataclass

from aeo.summaries.book import Book


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far the book has an evaluation."""

    total: int
    #: Lines with a result.
    done: int
    #: So many rows of the store's list of commits are in, and this trial's was the last.
    seen: int
    last: str


def standing(book: Book, id: str) -> Standing | None:
    """How far the book has one evaluation; None when it does not know it.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    with book.read() as connection:
        query = "SELECT total, done, seen, last FROM evaluations WHERE id = ?"
        found = connection.execute(query, (id,)).fetchone()
    return None if found is None else Standing(total=found[0], done=found[1], seen=found[2], last=found[3])


def standings(book: Book) -> dict[str, Standing]:
    """How far the book has every evaluation it knows.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    with book.read() as connection:
        found = connection.execute("SELECT id, total, done, seen, last FROM evaluations").fetchall()
    return {id: Standing(total=total, done=done, seen=seen, last=last) for id, total, done, seen, last in found}


def done_trials(book: Book, id: str) -> set[str]:
    """The trials of one evaluation that have a result in the book.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = """
        SELECT trial FROM lines
        WHERE evaluation = (SELECT number FROM evaluations WHERE id = ?) AND committed IS NOT NULL"""
    with book.read() as connection:
        return {trial for (trial,) in connection.execute(query, (id,))}
