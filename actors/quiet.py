"""Log lines of a worker process: ours at INFO, one line each; those of libraries only when something is wrong."""

from __future__ import annotations

import logging
import os

LEVEL_VARIABLE = "LANEWAY_LOG_LEVEL"


def quiet_process() -> None:
    """Set up logging once; LANEWAY_LOG_LEVEL names the level of Laneway's own lines (default WARNING)."""
    level = os.environ.get(LEVEL_VARIABLE, "WARNING").upper()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("laneway").setLevel(level if level in logging.getLevelNamesMapping() else "WARNING")
