"""The files of one trial, as they can be shown to people: whatever is in them, nothing outside them.

Read in this order: `place` (what can be asked of both kinds of places), `folder` (a committed run, or one put aside),
`mirror` (one that goes on), `windows` (parts of a text), `scan` and `trajectory`, `report`, `runs` (what is read of
them), `finding` (which place a trial's files are in), `tail`.
"""

from aeo.artifacts.finding import find as find
from aeo.artifacts.place import Entry as Entry
from aeo.artifacts.place import Listing as Listing
from aeo.artifacts.place import Place as Place
from aeo.artifacts.place import parts_of as parts_of
from aeo.artifacts.tail import WATCH_SECONDS as WATCH_SECONDS
