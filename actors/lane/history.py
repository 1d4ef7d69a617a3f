"""A conversation's log as its lane reads it: the last checkpoint and what follows, else all of it (Specification 8).

What a lane decides by is loaded when it is activated. What its prompts are made of is read when a model call is due,
from behind the last compaction on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ...storage.checkpoint import checkpoint_body, view_from
from ...storage.commands import SaveCheckpoint
from ...storage.contract import LogPage
from ...storage.errors import StoreCorrupt
from ...storage.projection import ConversationView
from ...storage.readback import records_of
from ...storage.records import AnyRecord, SubmissionSettled
from .outbox import Outbox
from .services import LaneServices

_log = logging.getLogger("laneway.lane")
_PAGE_RECORDS = 1024


async def load_view(conversation_id: str, services: LaneServices) -> ConversationView:
    """What is decided by, as of the log's end: the same from a checkpoint and from the whole log.

    Raises: StoreCorrupt when a batch does not decode or match its digest.
    """
    view = await _view_from_checkpoint(conversation_id, services)
    if view is not None:
        return view
    view = ConversationView(keep="open")
    await _read_on(conversation_id, services, view)
    return view


async def load_prompt(conversation_id: str, services: LaneServices, outbox: Outbox, view: ConversationView) -> None:
    """Bring the view's prompt to the log's end, from where it stands. Raises: StoreCorrupt."""
    while view.prompt.tail < view.tail_sequence:
        await outbox.flush()  # what the view knows and the log does not would be waited for without an end
        page = await _page(conversation_id, services, view.prompt.tail)
        for sequence, record in _records(page, services):
            if view.prompt.tail < sequence <= view.tail_sequence:
                view.prompt.add(sequence, record)


async def load_settlement(conversation_id: str, services: LaneServices, view: ConversationView, sequence: int) -> None:
    """Take in a settlement that the view has folded away: its row is still open behind it. Raises: StoreCorrupt."""
    for batch in (await services.store.read_log(conversation_id, sequence - 1, 1)).batches:
        for found, record in enumerate(records_of(batch), batch.first_sequence):
            if found == sequence and isinstance(record, SubmissionSettled):
                view.settlements[record.submission_id] = record


def checkpoint_due(view: ConversationView, services: LaneServices) -> bool:
    """Whether enough has been recorded since the last checkpoint."""
    return view.tail_sequence - view.checkpointed >= services.settings.checkpoint_records


def make_checkpoint(
    submission_id: str, services: LaneServices, view: ConversationView, tail_sequence: int, tail_digest: str
) -> SaveCheckpoint | None:
    """The view as a checkpoint of this tail; None when the view is of another one, or too large to be worth it."""
    if view.tail_sequence != tail_sequence:
        return None
    body = checkpoint_body(view, tail_digest)
    if len(body.encode()) > services.settings.checkpoint_bytes_max:
        services.counts["checkpoint_too_large"] += 1
        return None
    view.checkpointed = tail_sequence
    services.counts["checkpoint_made"] += 1
    return SaveCheckpoint(submission_id=submission_id, tail_sequence=tail_sequence, tail_digest=tail_digest, body=body)


async def _view_from_checkpoint(conversation_id: str, services: LaneServices) -> ConversationView | None:
    """The view from the last checkpoint and the records behind it; None when there is none that the log bears out."""
    checkpoint = await services.store.load_checkpoint(conversation_id)
    if checkpoint is None:
        return None
    services.counts["checkpoint_bytes_read"] += len(checkpoint.body)
    view = view_from(checkpoint)
    if view is not None:  # one batch more than needed: the one that ends at its tail
        page = await _page(conversation_id, services, checkpoint.tail_sequence - 1)
        last = page.batches[0] if page.batches else None
        if last is not None and (last.last_sequence, last.digest) == (
            checkpoint.tail_sequence,
            checkpoint.tail_digest,
        ):
            services.counts["checkpoint_loaded"] += 1
            view.extend(record for sequence, record in _records(page, services) if sequence > view.tail_sequence)
            if page.more:
                await _read_on(conversation_id, services, view)
            return view
    services.counts["checkpoint_rejected"] += 1
    _log.warning("%s: its checkpoint is of no use; the whole log is read", conversation_id)
    return None


async def _read_on(conversation_id: str, services: LaneServices, view: ConversationView) -> None:
    while True:
        page = await _page(conversation_id, services, view.tail_sequence)
        view.extend(record for _, record in _records(page, services))
        if not page.more:
            return


async def _page(conversation_id: str, services: LaneServices, after: int) -> LogPage:
    page = await services.store.read_log(conversation_id, after, _PAGE_RECORDS)
    _check_order(page, after)
    services.counts["pages_read"] += 1
    services.counts["batches_read"] += len(page.batches)
    services.counts["log_bytes_read"] += sum(len(batch.body) for batch in page.batches)
    return page


def _check_order(page: LogPage, after: int) -> None:
    """Each batch goes on where the one before it ended. A log that does not would be read as another one's tail, and
    every write behind it refused as stale, for ever. Raises: StoreCorrupt."""
    tail = after
    for index, batch in enumerate(page.batches):
        if batch.first_sequence > tail + 1 or (index and batch.first_sequence != tail + 1):
            raise StoreCorrupt(
                f"batch {batch.batch_id} of {batch.conversation_id} stands at {batch.first_sequence}, "
                f"and the log before it ends at {tail}",
                conversation_id=batch.conversation_id,
                sequence=batch.first_sequence,
            )
        tail = batch.last_sequence


def _records(page: LogPage, services: LaneServices) -> Iterator[tuple[int, AnyRecord]]:
    for batch in page.batches:
        records = records_of(batch)
        services.counts["records_read"] += len(records)
        yield from enumerate(records, batch.first_sequence)
