"""Models: the protocol that a lane speaks, the gate for answers, and the models that need no provider."""

from __future__ import annotations

from .functions import FunctionModel
from .protocol import Delta, Emit, Model, ModelRequest, ModelResponse, ToolCallRequest, Usage
from .responses import TOOL_CALLS_MAX, assistant_message, check_model_json, check_response
from .scripted import ScriptedModel

__all__ = [
    "TOOL_CALLS_MAX",
    "Delta",
    "Emit",
    "FunctionModel",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ScriptedModel",
    "ToolCallRequest",
    "Usage",
    "assistant_message",
    "check_model_json",
    "check_response",
]
