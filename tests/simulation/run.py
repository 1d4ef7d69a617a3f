"""Many seeds at once: `make simulate SEEDS=2000`, or one of them with `SEED=n`, which tells what happens in it."""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS)]

from simulation.planted import PLANTED  # noqa: E402  (found by the line above)
from simulation.seed import Outcome, run_seed  # noqa: E402

_CHUNK = 20


@dataclass
class Summary:
    """What a range of seeds came to."""

    seeds: int = 0
    steps: int = 0
    submissions: int = 0
    reached: Counter[str] = field(default_factory=Counter[str])
    digests: dict[int, str] = field(default_factory=dict[int, str])
    failures: dict[int, str] = field(default_factory=dict[int, str])

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.submissions += outcome.submissions
        self.reached.update(outcome.reached)
        self.digests[outcome.seed] = outcome.digest
        if outcome.violation is not None:
            self.failures[outcome.seed] = outcome.violation

    def told(self) -> str:
        """The failures, each with the command that repeats it."""
        return "\n".join(f"{text}\n  repeat it: make simulate SEED={seed}" for seed, text in self.failures.items())


def run_chunk(seeds: list[int], planted: str | None = None) -> list[Outcome]:
    """Run `seeds` here, one after another, with a known bug planted where one is named."""
    with PLANTED[planted]() if planted else contextlib.nullcontext():
        outcomes = [run_seed(seed) for seed in seeds]
    gc.collect()
    return outcomes


def first_finding(planted: str, seeds_max: int) -> str | None:
    """What the first of `seeds_max` seeds says that finds the planted bug; None when none does."""
    for seed in range(1, seeds_max + 1):
        (outcome,) = run_chunk([seed], planted)
        if outcome.violation is not None:
            return outcome.violation
    return None


def run_many(
    seeds: Iterable[int],
    *,
    workers: int | None = None,
    planted: str | None = None,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Run `seeds` in processes of their own. Without a planted bug, what one seed finds does not stop the others."""
    listed = list(seeds)
    chunks = [listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK)]
    summary = Summary()
    with ProcessPoolExecutor(workers or os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(run_chunk, chunks, itertools.repeat(planted)):
            for outcome in outcomes:
                summary.add(outcome)
            progress(summary)
            if planted and summary.failures:
                pool.shutdown(cancel_futures=True)
                break
    return summary


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and tell what happens in it")
    parser.add_argument(
        "--planted", choices=sorted(PLANTED), help="plant this known bug first, and stop when it is found"
    )
    parser.add_argument("--workers", type=int, help="processes to run them in; one a CPU by default")
    parser.add_argument("--digest", action="store_true", help="with --seed: print its digest alone")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.seed is not None:
        return _run_one(options.seed, only_digest=options.digest)
    began = time.monotonic()

    def progress(summary: Summary) -> None:
        print(f"\r{summary.seeds} of {options.seeds} seeds, {len(summary.failures)} failed", end="", file=sys.stderr)

    seeds = range(options.first, options.first + options.seeds)
    summary = run_many(seeds, workers=options.workers, planted=options.planted, progress=progress)
    print(file=sys.stderr)
    for name, count in sorted(summary.reached.items()):
        print(f"{count:9,}  {name.replace(':', '  ', 1)}")
    print(
        f"{summary.seeds:,} seeds, {summary.submissions:,} submissions, {summary.steps:,} steps "
        f"in {time.monotonic() - began:.0f} s; {len(summary.failures)} failed"
    )
    if summary.failures:
        print(summary.told())
    return 1 if summary.failures else 0


def _run_one(seed: int, *, only_digest: bool) -> int:
    outcome = run_seed(seed, None if only_digest else print)
    if only_digest:
        print(outcome.digest)
    else:
        print(f"seed {seed}: {outcome.violation or 'all promises hold'}")
        print(f"{outcome.submissions} submissions, {outcome.steps:,} steps, digest {outcome.digest}")
    return 0 if outcome.violation is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
