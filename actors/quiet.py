"""What a worker process sets up for itself: log lines of ours alone, and garbage that is looked for less often."""

from __future__ import annotations

import gc
import logging
import os

LEVEL_VARIABLE = "LANEWAY_LOG_LEVEL"
_GARBAGE_THRESHOLDS = (50_000, 20, 20)
"""Python's own (700, 10, 10) cost a third of a busy lane's time: a lane makes few cycles and keeps many objects."""


def quiet_process() -> None:
    """Set up a process of the runtime; LANEWAY_LOG_LEVEL names the level of its lines (default WARNING)."""
    gc.freeze()  # what was imported stays, and is not looked at again
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    level = os.environ.get(LEVEL_VARIABLE, "WARNING").upper()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("laneway").setLevel(level if level in logging.getLevelNamesMapping() else "WARNING")
