"""One measure from the command line: `python -m laneway.benchmarks recovery [--short] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import sys

import msgspec

from .result import NotDone, Options, Result

MEASURES = ("activation", "fairness", "growth", "memory", "recovery")


def main() -> int:
    """Print the result, or write it to a file; 1 when the work was not done."""
    parser = argparse.ArgumentParser(prog="python -m laneway.benchmarks")
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--short", action="store_true", help="a few seconds, with small counts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the result there instead of printing it")
    chosen = parser.parse_args()
    module = importlib.import_module(f".{chosen.measure}", __package__)
    try:
        result: Result = module.measure(Options(short=chosen.short, rounds=chosen.rounds), tell)
    except NotDone as error:
        print(f"the work was not done: {error}", file=sys.stderr)
        return 1
    text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
    if chosen.json:
        with open(chosen.json, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    return 0


def tell(what: str, done: int, total: int) -> None:
    print(f"{what}: {done:,} of {total:,}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
