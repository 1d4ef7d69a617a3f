"""Checkpoints: the deciding part of a folded view as text, bound to the tail that it was made at (Specification 8).

A checkpoint is disposable. Whatever is wrong with one, the log gives the same view.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import get_type_hints

import msgspec

from .header import Checkpoint
from .projection import ConversationView, derived
from .prompt import Prompt
from .records import chained_digest
from .values import digest_of, encode

FORMAT = 1
"""Counted up when the fold changes its meaning; a change of the views' fields shows by itself (`shape`)."""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored; `digest` covers the tail's digest and the very bytes of `view`."""

    format: int
    shape: str
    digest: str
    view: msgspec.Raw


_HINTS = get_type_hints(ConversationView)
_KEPT = {field.name: _HINTS[field.name] for field in dataclasses.fields(ConversationView) if not derived(field)}
"""The fields of a view that a checkpoint holds: all that are not derived, whatever fields there are."""
_Kept = msgspec.defstruct("_Kept", list(_KEPT.items()), kw_only=True, forbid_unknown_fields=True)
_envelopes = msgspec.json.Decoder(_Envelope)
_views = msgspec.json.Decoder(_Kept)


@functools.cache
def shape() -> str:
    """Changes whenever a field of a view or of a record in it does: a checkpoint of another shape is not read."""
    return digest_of(encode(msgspec.json.schema(_Kept)))[:16]


def checkpoint_body(view: ConversationView, tail_digest: str) -> str:
    """The deciding part of a folded view, bound to the digest of its tail."""
    data = encode({name: getattr(view, name) for name in _KEPT})
    envelope = _Envelope(
        format=FORMAT, shape=shape(), digest=chained_digest(tail_digest, data.decode()), view=msgspec.Raw(data)
    )
    return encode(envelope).decode()


def view_from(checkpoint: Checkpoint) -> ConversationView | None:
    """The view that was saved, its prompt left to be read from the log; None when the checkpoint is of no use.

    Whether the log has this tail is the caller's to check.
    """
    try:
        envelope = _envelopes.decode(checkpoint.body)
        data = bytes(envelope.view)
        digest = chained_digest(checkpoint.tail_digest, data.decode())
        if (envelope.format, envelope.shape, envelope.digest) != (FORMAT, shape(), digest):
            return None
        kept = _views.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    view = ConversationView(**msgspec.structs.asdict(kept))
    if view.keep != "open" or view.tail_sequence != checkpoint.tail_sequence:
        return None
    view.relink()
    view.prompt = Prompt.behind(view.covered)
    view.checkpointed = view.tail_sequence
    return view
