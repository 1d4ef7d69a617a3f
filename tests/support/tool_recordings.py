"""Recorded conversations whose tools are of all three effect classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def recordings(path: Path) -> Path:
    """Eight conversations of three turns, each with one call; written to `path`."""
    lines: list[str] = []
    for number in range(8):
        messages: list[dict[str, Any]] = []
        for turn, name in enumerate(("get_order", "update_order", "charge_card")):
            call_id = f"call_{turn}"
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages += [
                {"role": "user", "content": f"please {name}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "name": name, "content": f"result {turn}"},
                {"role": "assistant", "content": f"done {turn}"},
            ]
        lines.append(json.dumps({"id": f"order-{number}", "messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path
