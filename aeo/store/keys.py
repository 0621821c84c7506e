"""Names of everything the store keeps. Python and the Lua scripts make their keys from this one table.

Nobody else writes a key down. Parts are plain names (`aeo.core.names`), so they hold no separator and no pattern.
"""

from __future__ import annotations

from collections.abc import Mapping

TEMPLATES: Mapping[str, str] = {
    #: When this store was last brought in line with the disk, ms; missing in one that was wiped.
    "recovered": "aeo:recovered",
    # Set while the store is being brought in line: gone when it was wiped meanwhile.
    "recovering": "aeo:recovering",
    #: Stream: what happened, until the control process has it on disk.
    "events": "aeo:events",
    #: What shows that an event is the controller's; no worker can read it.
    "seal": "aeo:seal",
    #: List: results that arrived; hash: those being looked at, by take.
    "inbox": "aeo:inbox",
    "taken": "aeo:inbox:taken",
    #: Sorted sets of evaluation ids by time of submission: all, of one state, of one name, reruns of one.
    "evaluations": "aeo:evaluations",
    "in_state": "aeo:evaluations:state:%s",
    "named": "aeo:evaluations:name:%s",
    "reruns": "aeo:evaluations:reruns:%s",
    #: Hash: the status of one evaluation, counters included.
    "evaluation": "aeo:e:%s",
    #: Hashes by trial: state; estimated milliseconds; batch whose share holds it; its requeues, and
    #: those of them that count against the limit (only where there is one).
    "trials": "aeo:e:%s:trials",
    "estimates": "aeo:e:%s:estimates",
    "where": "aeo:e:%s:where",
    #: Hash: trial to the token whose requeue counted last.
    "counted_token": "aeo:e:%s:counted_token",
    #: Hash: trial to the worker it failed on last, "trial since" to when (ms).
    "avoid": "aeo:e:%s:avoid",
    #: Lists: whether the last runs failed by infrastructure, the latest first; of an evaluation, of a worker.
    "recent": "aeo:e:%s:recent",
    "worker_recent": "aeo:w:%s:recent",
    "requeues": "aeo:e:%s:requeues",
    "counted": "aeo:e:%s:counted",
    #: Hashes of the leases: trial to claim; trial to phase; token to trial. Sorted set: trial by end of lease, ms.
    "claims": "aeo:e:%s:claims",
    "phases": "aeo:e:%s:phases",
    "tokens": "aeo:e:%s:tokens",
    "leases": "aeo:e:%s:leases",
    #: Hash: trial to the token that won and its row. List: trials in the order of their commits.
    "rows": "aeo:e:%s:rows",
    "order": "aeo:e:%s:order",
    #: Hashes by batch: worker; state; since when (ms); Celery message.
    #: Sorted set: batches with a share left, by its milliseconds.
    "batches": "aeo:e:%s:batches",
    "batch_since": "aeo:e:%s:batch_since",
    "batch_states": "aeo:e:%s:batch_states",
    "messages": "aeo:e:%s:messages",
    "left": "aeo:e:%s:left",
    #: Sorted set: the pending trials of one batch, in the order to run them; of batch "": in no batch's.
    "share": "aeo:e:%s:share:%s",
    #: Hashes: number of a kind to what its trials take, "cpus/1000 memory disk model"; trial to its kind; kind to how
    #: many of it are pending. Sorted set: the pending trials of one kind in one batch's share, with their places in it.
    #: The last three only where there are several kinds.
    "kinds": "aeo:e:%s:kinds",
    "kind": "aeo:e:%s:kind",
    "kind_left": "aeo:e:%s:kind_left",
    "queue": "aeo:e:%s:queue:%s:%s",
    #: Hashes, only where its workers are of different speeds: worker to its speed in thousandths, " power" to that of
    #: all slots together, " fastest" to the highest; batch to since when (ms) it leaves what waits to faster ones,
    #: "batch rests" to until when nobody makes way for it, and " horizon" to the last look at all that is left.
    "speeds": "aeo:e:%s:speeds",
    "leaves": "aeo:e:%s:leaves",
    #: Hashes: trial to the worker that passed it over; batch to when (ms) it gave its turn last, and by which token.
    "rooms": "aeo:e:%s:rooms",
    "turned": "aeo:e:%s:turned",
    #: Set: trials one worker cannot hold.
    "unfit": "aeo:e:%s:unfit:%s",
    #: Somebody looks at a running trial; expires by itself.
    "watched": "aeo:e:%s:watched:%s",
    #: Lists of the last runs, newest first: of one executor's task, and of any task of one of its datasets.
    #: The one without parts: whether they hold what the summaries know.
    "history": "aeo:history:%s:%s",
    "history_meant": "aeo:history_meant:%s:%s",
    "history_whole": "aeo:history_whole",
    #: Hash: worker to its speed in thousandths, as learnt. List: the last runs of one, newest first, each as its
    #: evaluation, seconds, another worker and what the same took there; expires.
    "learnt": "aeo:speeds",
    "timed": "aeo:speeds:%s",
    #: What one submission is made of before it is published; expires by itself.
    "staged": "aeo:staged:%s:%s",
    #: Hash: worker id to what it said at registration.
    "workers": "aeo:workers",
    #: Hash: "worker boot" of processes that a person removed to "instance since" (ms).
    "removed": "aeo:workers:removed",
    #: Set: workers that claim nothing now, whatever the reason. A worker may read no key of another, so it reads these.
    "idle": "aeo:workers:idle",
    #: Of one worker: hash of what it is and what people set; heartbeat, which expires; set of its "evaluation trial".
    #: List: what it measured of itself, one sample a minute, the latest first; expires.
    "samples": "aeo:w:%s:samples",
    "worker": "aeo:w:%s",
    "beat": "aeo:w:%s:beat",
    "worker_leases": "aeo:w:%s:leases",
    #: Of one worker, where a batch is "evaluation batch". Sorted set: those that wait for a slot, by since when (ms).
    #: Set: those that have one. Hash: batch to "kind trial" of what runs there. The trial it passed over first:
    #: "evaluation trial since".
    "waiting": "aeo:w:%s:waiting",
    "working": "aeo:w:%s:working",
    "loads": "aeo:w:%s:loads",
    "room": "aeo:w:%s:room",
    #: Hashes: key of a model provider to "trials per_minute", its limit; to when (ms) the next trial may start.
    "limits": "aeo:limits",
    "paced": "aeo:paced",
    #: Set: the batches ("evaluation batch") whose trial runs under a key that has a limit.
    "using": "aeo:using:%s",
    #: Set: closed evaluations of which one worker still holds something; expires.
    "wants": "aeo:w:%s:wants",
    #: Set: beginnings of the digests of the task folders one worker holds; expires.
    "held": "aeo:w:%s:held",
    #: What one worker is to fetch ahead. Hashes: dataset to the order; dataset to what became of it. List: the
    #: "digest name bytes" of one order's folders. All expire.
    "orders": "aeo:w:%s:orders",
    "prefetched": "aeo:w:%s:prefetched",
    "ordered": "aeo:w:%s:order:%s",
}


def key(noun: str, *parts: str) -> str:
    """Return the key of one thing, such as ``key("share", evaluation, batch)``."""
    return TEMPLATES[noun] % parts


def lua_table() -> str:
    """The table as Lua source, for the head of every script."""
    return "local TEMPLATES = {" + ", ".join(f"{noun}='{template}'" for noun, template in TEMPLATES.items()) + "}\n"
