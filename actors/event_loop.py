"""The event loop that Laneway's own threads run: uvloop where there is one, which costs half as much a callback."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that no thread runs yet."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:  # not made for every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
