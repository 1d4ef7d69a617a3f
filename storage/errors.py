"""Errors: one base with a stable `code`; a class of its own only where a caller acts differently."""

from __future__ import annotations

from typing import Any, ClassVar


class LanewayError(Exception):
    """Base of all errors of Laneway.

    `code` is stable and snake_case, `retryable` says whether the same call may succeed later, and `details` carries
    JSON values that a program can act on. Instances survive pickling, so they cross Ray unchanged.
    """

    default_code: ClassVar[str] = "laneway_error"
    default_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.details: dict[str, Any] = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.retryable, self.details)

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON values, as `--json` prints it."""
        return {"code": self.code, "message": self.message, "retryable": self.retryable, "details": self.details}


def described(error: BaseException) -> str:
    """The type and the text of any exception, and of one whose text cannot be had its type alone."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # the text is made by foreign code, and a failure's report must not fail itself
        return name


def _rebuild(
    cls: type[LanewayError], message: str, code: str, retryable: bool, details: dict[str, Any]
) -> LanewayError:
    return cls(message, code=code, retryable=retryable, **details)


class InvalidInput(LanewayError):
    """The caller's input breaks a named limit; nothing was stored. Details: `field`, and `limit` where one applies."""

    default_code = "invalid_input"


class AdmissionConflict(LanewayError):
    """The idempotency key was used before with another payload. Details: `stored_digest`, `given_digest`."""

    default_code = "admission_conflict"


class NotFound(LanewayError):
    """Nothing of that id is known to the store."""

    default_code = "not_found"


class IllegalTransition(LanewayError):
    """The ledger's table has no such move; nothing changed (Specification 3)."""

    default_code = "illegal_transition"


class Refused(LanewayError):
    """A command that contradicts a recorded fact; nothing changed. The code names the fact."""

    default_code = "refused"


class Fenced(LanewayError):
    """A newer attempt owns the lane: the caller must end itself (Specification 6, DUR-006)."""

    default_code = "fenced"


class StaleTail(LanewayError):
    """The log has moved on. Details: `tail_sequence`, `tail_digest`, the true tail."""

    default_code = "stale_tail"
    default_retryable = True


class StoreUnavailable(LanewayError):
    """The store gave no answer: what was sent may or may not be committed; repeat it by the same ids."""

    default_code = "store_unavailable"
    default_retryable = True


class StoreBusy(LanewayError):
    """Another process has the store's file open. Details: `pid` of the owner where the system tells it."""

    default_code = "store_busy"
    default_retryable = True


class StoreFull(LanewayError):
    """Too little disk space is left; nothing of this unit was stored."""

    default_code = "store_full"
    default_retryable = True


class StoreCorrupt(LanewayError):
    """A stored row does not decode, or its digest chain is broken. Details name the conversation and the sequence."""

    default_code = "store_corrupt"


class RuntimeUnreachable(LanewayError):
    """No runtime answers under this address and namespace."""

    default_code = "runtime_unreachable"
    default_retryable = True


class ModelError(LanewayError):
    """A model call failed; `retryable` says whether another try may help."""

    default_code = "model_failed"


class ToolError(LanewayError):
    """A tool says that it failed in a way the model should read; other exceptions of a tool are treated alike."""

    default_code = "tool_failed"


ERRORS: dict[str, type[LanewayError]] = {
    cls.default_code: cls
    for cls in (
        LanewayError,
        InvalidInput,
        AdmissionConflict,
        NotFound,
        IllegalTransition,
        Refused,
        Fenced,
        StaleTail,
        StoreUnavailable,
        StoreBusy,
        StoreFull,
        StoreCorrupt,
        RuntimeUnreachable,
        ModelError,
        ToolError,
    )
}
"""Every class under its default code, so that an error crosses a wire as data."""
