"""What a user writes: agents, their tools and models, and recorded conversations to replay."""

from __future__ import annotations

from .agent import Agent
from .authority import Act
from .compaction import Compaction, leave_out
from .models import (
    Delta,
    Emit,
    FunctionModel,
    Model,
    ModelRequest,
    ModelResponse,
    ScriptedModel,
    ToolCallRequest,
    Usage,
    assistant_message,
    check_response,
)
from .pydantic_ai_model import PydanticAIModel
from .reconcile import Completed, NeverStarted, Reconciliation, SafeToRetry
from .recording import LineProblem, RecordedInput, Recording, Segment, Turn, read_recordings
from .registry import Registry, load_agents
from .replay import ReplayModel, replay_agent
from .tools import Effect, Tool, ToolContext, ToolMessage, tool

__all__ = [
    "Act",
    "Agent",
    "Compaction",
    "Completed",
    "Delta",
    "Effect",
    "Emit",
    "FunctionModel",
    "LineProblem",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "NeverStarted",
    "PydanticAIModel",
    "Reconciliation",
    "RecordedInput",
    "Recording",
    "Registry",
    "ReplayModel",
    "SafeToRetry",
    "ScriptedModel",
    "Segment",
    "Tool",
    "ToolCallRequest",
    "ToolContext",
    "ToolMessage",
    "Turn",
    "Usage",
    "assistant_message",
    "check_response",
    "leave_out",
    "load_agents",
    "read_recordings",
    "replay_agent",
    "tool",
]
