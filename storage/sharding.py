"""Which shard a conversation belongs to, and how the answers of all shards become one: pure, no store is open here.

Every fact of a conversation lies in one shard, so a unit is never split, and no transaction spans two of them.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from .commands import Unit
from .contract import DeadLetter, Quarantine, ScanPage, StoreInfo, Table
from .errors import InvalidInput
from .ledger import Row
from .shard_names import base_path

SHARDS_MAX: Final = 64
"""Each is a process with a file of its own; beyond the disks of one machine more of them bring nothing."""

BY_CONVERSATION: Final = frozenset(
    {"read_log", "inspect_tail", "lookup_key", "load_checkpoint", "quarantine", "release_quarantine"}
)
"""Methods of the contract whose first argument is a conversation's id."""

BY_SUBMISSION: Final = frozenset({"lookup", "snapshot"})
"""Methods whose first argument is a submission's id, from which nobody can tell its shard."""


class Shard(msgspec.Struct, frozen=True):
    """One shard of a store: its number from 0, and how many there are."""

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not (1 <= self.of <= SHARDS_MAX and 0 <= self.index < self.of):
            raise InvalidInput(
                f"there is no shard {self.index} of {self.of}; a store has 1 to {SHARDS_MAX} of them",
                field="shards",
                limit=SHARDS_MAX,
            )


UNSHARDED: Final = Shard()


def all_shards(shards: int) -> tuple[Shard, ...]:
    """The shards of a store, in order. Raises: InvalidInput with field "shards"."""
    return tuple(Shard(index, shards) for index in range(max(1, shards)))


def shard_of(conversation_id: str, shards: int) -> int:
    """The number of the shard that holds the conversation.

    The first 8 bytes of the id's SHA-256 as a big-endian number, modulo `shards`: the same in every process and
    version, because it says where stored data is. An id that no store takes has a shard that refuses it.
    """
    if shards == 1:
        return 0
    digest = hashlib.sha256(conversation_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) % shards


def places_by_shard(units: Sequence[Unit], shards: int) -> dict[int, list[int]]:
    """Where in `units` those of each shard stand that is concerned."""
    found: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        found.setdefault(shard_of(unit.conversation_id, shards), []).append(place)
    return found


def shard_asked(method: str, args: Sequence[Any], shards: int) -> int | None:
    """The one shard that can answer a call of the contract; None where all have to be asked."""
    names_one = method in BY_CONVERSATION or method == "list_rows"
    conversation_id = args[0] if names_one and args else None
    return None if conversation_id is None else shard_of(conversation_id, shards)


# --- answers of all shards, in order of their numbers ----------------------------------------------------------------


def merged_conversations(pages: Sequence[Sequence[str]], limit: int) -> list[str]:
    return list(heapq.merge(*pages))[: max(0, limit)]


def merged_scan(pages: Sequence[ScanPage], limit: int) -> ScanPage:
    """The first `limit` open submissions in the order of the whole store.

    A page that goes on ends with its cursor: rows of others that come behind it have to wait, because that shard may
    hold some between.
    """
    last = min((page.cursor for page in pages if page.cursor is not None), default=None)
    rows = sorted(
        (row for page in pages for row in page.rows), key=lambda row: (row.conversation_id, row.queue_sequence)
    )
    known = [row for row in rows if last is None or (row.conversation_id, row.queue_sequence) <= last]
    page = tuple(known[: max(0, limit)])
    more = len(page) < len(rows) or last is not None
    return ScanPage(rows=page, cursor=(page[-1].conversation_id, page[-1].queue_sequence) if page and more else None)


def merged_rows(found: Sequence[Sequence[Row]], limit: int) -> list[Row]:
    return _newest(found, limit, lambda row: (row.admitted_at_ms, row.conversation_id, row.queue_sequence))


def merged_dead_letters(found: Sequence[Sequence[DeadLetter]], limit: int) -> list[DeadLetter]:
    return _newest(found, limit, lambda dead: (dead.changed_at_ms, dead.conversation_id, dead.queue_sequence))


def merged_quarantined(pages: Sequence[Sequence[Quarantine]], limit: int) -> list[Quarantine]:
    return sorted((held for page in pages for held in page), key=lambda held: held.conversation_id)[: max(0, limit)]


def merged_owners(found: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """All owners; where shards differ, the latest end of the lease: one that was away has heard of fewer renewals."""
    ends: dict[str, int] = {}
    for owners in found:
        for owner_id, end_ms in owners.items():
            ends[owner_id] = max(end_ms, ends.get(owner_id, 0))
    return ends


def merged_info(found: Sequence[StoreInfo]) -> StoreInfo:
    """The whole store: its counts are sums, its path is what the files' names have in common."""
    first = found[0]
    return StoreInfo(
        adapter=first.adapter,
        deployment_class=first.deployment_class,
        path=None if first.path is None else base_path(first.path),
        commits=sum(info.commits for info in found),
        units=sum(info.units for info in found),
        rejected=sum(info.rejected for info in found),
        batches=sum(info.batches for info in found),
        rows=sum(info.rows for info in found),
        body_bytes=sum(info.body_bytes for info in found),
        shards=len(found),
    )


def merged_table(found: Sequence[Table], limit: int) -> Table:
    """Each shard's answer to the same question, one below the other; a first column `shard` says whose a row is.

    Nothing is added up or sorted across shards: a count is a row for each of them, visibly so.
    """
    rows = ((index, *row) for index, table in enumerate(found) for row in table.rows)
    taken = tuple(row for _, row in zip(range(max(0, limit)), rows, strict=False))
    return Table(columns=("shard", *found[0].columns), rows=taken)


def _newest(found: Sequence[Sequence[Any]], limit: int, key: Callable[[Any], Any]) -> list[Any]:
    rows = sorted((row for rows in found for row in rows), key=key)
    return rows[max(0, len(rows) - max(0, limit)) :]


LIMITS: Final = {
    "list_rows": (2, 1000),
    "list_conversations": (1, 1000),
    "quarantined": (1, 1000),
    "dead_letters": (1, 1000),
    "scan_nonterminal": (1, 1024),
    "query": (1, 10_000),
}
"""Where a method's `limit` stands among its arguments, and what it is when it is left out; as in the contract."""

_MERGES: Final[dict[str, Callable[[Any, int], Any]]] = {
    "list_rows": merged_rows,
    "list_conversations": merged_conversations,
    "quarantined": merged_quarantined,
    "dead_letters": merged_dead_letters,
    "scan_nonterminal": merged_scan,
    "query": merged_table,
    "owners": lambda found, _: merged_owners(found),
    "info": lambda found, _: merged_info(found),
    "renew_lease": lambda found, _: min(found),  # every shard honours it that long
    "retire_owner": lambda found, _: None,
}

MERGED: Final = frozenset(_MERGES)
"""Methods that ask all shards, unless they name a conversation."""


def merged(method: str, args: Sequence[Any], answers: Sequence[Any]) -> Any:
    """One answer from those that each shard gave to the same call."""
    position, limit = LIMITS.get(method, (0, 0))
    if method in LIMITS and len(args) > position:
        limit = args[position]
    return _MERGES[method](answers, limit)
