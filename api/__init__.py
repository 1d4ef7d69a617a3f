"""Laneway: a durable runtime (DR/duckdb) for AI-agent conversations on Ray.

The names below are the whole public surface; each is imported when it is first used, so `import laneway` is quick and
needs neither Ray nor DuckDB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agents import (
        Act,
        Agent,
        Compaction,
        Completed,
        FunctionModel,
        ModelRequest,
        ModelResponse,
        NeverStarted,
        PydanticAIModel,
        ReplayModel,
        SafeToRetry,
        ScriptedModel,
        Tool,
        ToolCallRequest,
        ToolContext,
        replay_agent,
        tool,
    )
    from .cluster.client import Event
    from .cluster.launch import connect, local, start
    from .cluster.runtime import Conversation, Receipt, Runtime, Settlement
    from .recovery.convergence import Report
    from .recovery.explain import Explanation
    from .recovery.obligations import Obligation
    from .storage.contract import DeadLetter, Quarantine
    from .storage.errors import (
        AdmissionConflict,
        InvalidInput,
        LanewayError,
        ModelError,
        NotFound,
        Refused,
        RuntimeUnreachable,
        StoreBusy,
        StoreCorrupt,
        StoreFull,
        StoreUnavailable,
        ToolError,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    ".agents": (
        "Act",
        "Agent",
        "Compaction",
        "Completed",
        "FunctionModel",
        "ModelRequest",
        "ModelResponse",
        "NeverStarted",
        "PydanticAIModel",
        "ReplayModel",
        "SafeToRetry",
        "ScriptedModel",
        "Tool",
        "ToolCallRequest",
        "ToolContext",
        "replay_agent",
        "tool",
    ),
    ".cluster.client": ("Event",),
    ".cluster.launch": ("connect", "local", "start"),
    ".cluster.runtime": ("Conversation", "Receipt", "Runtime", "Settlement"),
    ".recovery.convergence": ("Report",),
    ".recovery.explain": ("Explanation",),
    ".recovery.obligations": ("Obligation",),
    ".storage.contract": ("DeadLetter", "Quarantine"),
    ".storage.errors": (
        "AdmissionConflict",
        "InvalidInput",
        "LanewayError",
        "ModelError",
        "NotFound",
        "Refused",
        "RuntimeUnreachable",
        "StoreBusy",
        "StoreCorrupt",
        "StoreFull",
        "StoreUnavailable",
        "ToolError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Act",
    "AdmissionConflict",
    "Agent",
    "Compaction",
    "Completed",
    "Conversation",
    "DeadLetter",
    "Event",
    "Explanation",
    "FunctionModel",
    "InvalidInput",
    "LanewayError",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "NeverStarted",
    "NotFound",
    "Obligation",
    "PydanticAIModel",
    "Quarantine",
    "Receipt",
    "Refused",
    "ReplayModel",
    "Report",
    "Runtime",
    "RuntimeUnreachable",
    "SafeToRetry",
    "ScriptedModel",
    "Settlement",
    "StoreBusy",
    "StoreCorrupt",
    "StoreFull",
    "StoreUnavailable",
    "Tool",
    "ToolCallRequest",
    "ToolContext",
    "ToolError",
    "connect",
    "local",
    "replay_agent",
    "start",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
