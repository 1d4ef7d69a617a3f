"""Compaction of the prompt at a turn boundary: an effect, whose artifact is committed before a model reads it."""

from __future__ import annotations

import logging

from ...storage.prompt import Entry, InputEntry, Prompt, TurnEntry, messages_of
from . import effects, facts
from .claimed import Claimed, Interrupted, SelfCancelled
from .history import load_prompt

_log = logging.getLogger("laneway.lane")


def covered_entries(prompt: Prompt, run_id: str, after_messages: int, keep_messages: int) -> list[Entry]:
    """What an artifact should stand for now: nothing while the prompt is short enough.

    The cut lies between entries, so no result loses its call, and never behind a turn whose results are still owed. The
    run at work keeps all of its own messages as long as there are others in the prompt.
    """
    entries = list(prompt.uncovered())
    if sum(entry.size for entry in entries) <= after_messages:
        return []
    end, kept = len(entries), 0
    while end > 0 and kept < keep_messages:
        end -= 1
        kept += entries[end].size
    owed = next((index for index, entry in enumerate(entries) if not entry.complete), end)
    end = min(end, owed)
    if any(entry.run_id != run_id for entry in entries):
        end = next((index for index, entry in enumerate(entries[:end]) if entry.run_id == run_id), end)
    while end > 0 and isinstance(entry := entries[end], InputEntry) and not entry.begins:
        end -= 1  # what joined a run, or was said to it, stays with the turn that it followed
    return entries[:end]


async def compact(claimed: Claimed) -> bool:
    """Compact the prompt if it is due; True when there is something new to decide by. A failure is counted, no more."""
    setting = claimed.agent.compaction
    if setting is None or claimed.compaction_failed:
        return False
    await claimed.outbox.flush()
    await load_prompt(claimed.row.conversation_id, claimed.services, claimed.outbox, claimed.view)
    prompt = claimed.view.prompt
    covered = covered_entries(prompt, claimed.run_id, setting.after_messages, setting.keep_messages)
    if not covered:
        return False
    messages = [*prompt.artifact, *messages_of(covered)]
    responses = prompt.covered_responses + sum(isinstance(entry, TurnEntry) for entry in covered)
    sequence = covered[-1].sequence
    try:
        work = effects.compact(setting, messages, claimed.services.settings, claimed.leash())
        artifact = await claimed.interruptible(work)
    except Interrupted:
        return True
    except SelfCancelled as error:
        artifact = effects.Failed(effects.error_fact(error))
    if isinstance(artifact, effects.Failed):
        claimed.compaction_failed = True  # the next attempt or run tries again
        claimed.services.counts["compaction_failed"] += 1
        _log.warning("%s: its prompt is not compacted: %s", claimed.row.conversation_id, artifact.error.message)
        return False
    claimed.outbox.record(facts.compaction_created(claimed.run_id, sequence, responses, artifact.result))
    await claimed.outbox.flush()
    claimed.services.counts["compactions"] += 1
    return True
