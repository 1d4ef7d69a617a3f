"""Several stores of one process as one: for the runtime without Ray, and for reading files whose runtime is down."""

from __future__ import annotations

from collections.abc import Sequence

from . import sharding
from .commands import Answer, Unit
from .contract import DeadLetter, LogPage, Quarantine, ScanPage, Snapshot, Store, StoreInfo, Table, Tail
from .errors import NotFound
from .header import Checkpoint
from .ledger import Row


class ShardedStore:
    """Keeps the contract of `storage.contract.Store` over the stores of all shards, in the order of their numbers.

    A group of units is a transaction in each shard that it concerns, one after another. StoreFull says that the shard
    which is full stored nothing; a repeat of the group gives the others' units their first answers.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = tuple(stores)

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for index, theirs in sharding.places_by_shard(units, len(self._stores)).items():
            answers.update(zip(theirs, self._stores[index].commit([units[place] for place in theirs]), strict=True))
        return [answers[place] for place in range(len(units))]

    def read_log(self, conversation_id: str, after: int = 0, limit: int = 1024) -> LogPage:
        return self._of(conversation_id).read_log(conversation_id, after, limit)

    def inspect_tail(self, conversation_id: str) -> Tail:
        return self._of(conversation_id).inspect_tail(conversation_id)

    def snapshot(self, submission_id: str) -> Snapshot:
        for store in self._stores:
            if store.lookup(submission_id) is not None:
                return store.snapshot(submission_id)
        raise NotFound(f"no submission {submission_id}", submission_id=submission_id)

    def scan_nonterminal(self, cursor: tuple[str, int] | None = None, limit: int = 1024) -> ScanPage:
        return sharding.merged_scan([store.scan_nonterminal(cursor, limit) for store in self._stores], limit)

    def lookup(self, submission_id: str) -> Row | None:
        return next((row for store in self._stores if (row := store.lookup(submission_id)) is not None), None)

    def lookup_key(self, conversation_id: str, principal: str, idempotency_key: str) -> Row | None:
        return self._of(conversation_id).lookup_key(conversation_id, principal, idempotency_key)

    def list_rows(self, conversation_id: str | None = None, state: str | None = None, limit: int = 1000) -> list[Row]:
        if conversation_id is not None:
            return self._of(conversation_id).list_rows(conversation_id, state, limit)
        return sharding.merged_rows([store.list_rows(None, state, limit) for store in self._stores], limit)

    def list_conversations(self, after: str = "", limit: int = 1000) -> list[str]:
        return sharding.merged_conversations([store.list_conversations(after, limit) for store in self._stores], limit)

    def load_checkpoint(self, conversation_id: str) -> Checkpoint | None:
        return self._of(conversation_id).load_checkpoint(conversation_id)

    def renew_lease(self, owner_id: str, ttl_ms: int) -> int:
        return min([store.renew_lease(owner_id, ttl_ms) for store in self._stores])

    def retire_owner(self, owner_id: str) -> None:
        for store in self._stores:
            store.retire_owner(owner_id)

    def owners(self) -> dict[str, int]:
        return sharding.merged_owners([store.owners() for store in self._stores])

    def quarantine(self, conversation_id: str, reason: str, author: str) -> Quarantine:
        return self._of(conversation_id).quarantine(conversation_id, reason, author)

    def release_quarantine(self, conversation_id: str, author: str) -> Quarantine | None:
        return self._of(conversation_id).release_quarantine(conversation_id, author)

    def quarantined(self, after: str = "", limit: int = 1000) -> list[Quarantine]:
        return sharding.merged_quarantined([store.quarantined(after, limit) for store in self._stores], limit)

    def dead_letters(self, codes: Sequence[str] | None = None, limit: int = 1000) -> list[DeadLetter]:
        return sharding.merged_dead_letters([store.dead_letters(codes, limit) for store in self._stores], limit)

    def query(self, sql: str, limit: int = 10_000) -> Table:
        """Each shard answers for itself; the first column says which (`sharding.merged_table`)."""
        return sharding.merged_table([store.query(sql, limit) for store in self._stores], limit)

    def info(self) -> StoreInfo:
        return sharding.merged_info([store.info() for store in self._stores])

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _of(self, conversation_id: str) -> Store:
        return self._stores[sharding.shard_of(conversation_id, len(self._stores))]
