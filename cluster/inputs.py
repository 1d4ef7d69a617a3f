"""What callers hand over, checked before anything is stored: every refusal names its field and limit."""

from __future__ import annotations

from typing import Any, get_args

from ..actors.decisions import UnknownResolution
from ..actors.lane.values import Admission
from ..storage.errors import InvalidInput
from ..storage.ids import new_id
from ..storage.records import Resolution
from ..storage.values import Limits, check_json, check_text, digest_of, encode

PRINCIPAL_DEFAULT = "anonymous"


def check_admission(
    *,
    agent: object,
    content: object,
    idempotency_key: object,
    principal: object,
    extra: object,
    limits: Limits,
    steering: bool = False,
) -> Admission:
    """An admission with fresh ids. `content` is text, or a list of content parts in OpenAI's chat format.

    With `steering` it is for the run that is active when it is admitted, and for that run's agent: `agent` is not used.

    Raises: InvalidInput with `field`, and `limit` where one applies.
    """
    return Admission(
        submission_id=new_id("sub"),
        receipt_id=new_id("rcp"),
        principal=check_text(principal, "principal", length_max=limits.id_length_max),
        idempotency_key=check_text(
            new_id("key") if idempotency_key is None else idempotency_key,
            "idempotency_key",
            length_max=limits.id_length_max,
        ),
        agent="" if steering else check_text(agent, "agent", length_max=limits.id_length_max),
        input=(payload := _payload(content, extra, limits)),
        input_digest=digest_of(encode(["steering", payload, None] if steering else [agent, payload])),
        steering=steering,
    )


def check_author(author: object, reason: object, limits: Limits) -> None:
    """Who acts and why, as they are recorded. Raises: InvalidInput with field "author" or "reason"."""
    check_text(author, "author", length_max=limits.id_length_max)
    if reason != "":
        check_text(reason, "reason", length_max=limits.id_length_max * 16)


def check_resolution(
    submission_id: str,
    resolution: object,
    call_id: str | None,
    result: object,
    author: str,
    reason: str,
    limits: Limits,
) -> UnknownResolution:
    """Raises: InvalidInput with `field` "resolution", "result", "author" or "reason"."""
    check_author(author, reason, limits)
    known: tuple[Resolution, ...] = get_args(Resolution)
    if resolution not in known:
        raise InvalidInput(f"resolution must be one of {', '.join(known)}", field="resolution")
    if result is not None and resolution != "completed_with_result":
        raise InvalidInput("a result belongs to completed_with_result alone", field="result")
    check_json(result, "result", bytes_max=limits.tool_result_bytes_max, depth_max=limits.json_depth_max)
    return UnknownResolution(
        submission_id=submission_id,
        resolution=resolution,
        author=author,
        reason=reason,
        call_id=call_id,
        result=result,
    )


def _payload(content: object, extra: object, limits: Limits) -> str:
    if isinstance(content, str):
        check_text(content, "input", length_max=limits.input_bytes_max)
    elif isinstance(content, list):
        if not content:
            raise InvalidInput("input must not be empty", field="input")
        for index, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise InvalidInput(
                    f"input[{index}] must be a content part: an object with a text `type`", field=f"input[{index}]"
                )
    else:
        raise InvalidInput(
            f"input must be text or a list of content parts, not {type(content).__name__}", field="input"
        )
    payload: dict[str, Any] = {"content": content}
    if extra is not None:
        if not isinstance(extra, dict) or {"role", "content"} & extra.keys():
            raise InvalidInput("message_keys must be an object without role and content", field="message_keys")
        if extra:
            check_json(extra, "message_keys", bytes_max=limits.input_bytes_max, depth_max=limits.json_depth_max)
            payload["extra"] = extra
    check_json(content, "input", bytes_max=limits.input_bytes_max, depth_max=limits.json_depth_max)
    return encode(payload).decode()
