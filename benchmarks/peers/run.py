"""The same turn done by Laneway and by its peers, in one run, on one machine, with fsync on: turns/s, times, ratios.

    make bench-peers                                             # installs all that it needs, three rounds
    make bench-peers ARGS="--rounds 1 --turns 300"
    make bench-peers ARGS="--only langgraph-sqlite --only restate"

A turn: user input, model, one tool, model, settled; the model and the tool answer at once (300 and 200 bytes). In each
round everybody is measured once, in a process of its own and on an empty store, one after another. It fails loudly when
a store does not hold the work that was asked for, or when its fsync is not on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report
from .child import PEERS
from .machine import machine, packages
from .restate_peer import installed
from .servers import Servers
from .workload import Workload, workloads

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
STARTUP_S_MAX = 120.0
TURN_S_MAX = 0.1
"""Per turn, all turns together: the slowest does one in 0.015 s."""
ENDING_S_MAX = 20.0
TITLES = {
    "many": "{conversations} conversations, {concurrency} turns at a time, {turns} turns",
    "eight": "{conversations} conversations, {concurrency} turns at a time, {turns} turns (Laneway: lanes_per_actor=1)",
    "lone": "A lone conversation, {turns} turns one after another",
}


def run(command: Sequence[str], folder: Path, environment: dict[str, str], turns: int) -> str:
    """Run in a process group of its own; its standard output. Nothing of the group outlives the call."""
    seconds_max = STARTUP_S_MAX + turns * TURN_S_MAX
    with (folder / "stderr").open("wb+") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=seconds_max)[0].decode()
        except BaseException as stopped:
            # It ends its own servers when it is asked to.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ENDING_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
            if isinstance(stopped, subprocess.TimeoutExpired):
                raise SystemExit(f"not done within {seconds_max:.0f} s: {shlex.join(command)}") from None
            raise
        finally:
            if _group_left(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").splitlines()[-30:]
            raise SystemExit("\n".join([f"failed: {shlex.join(command)}", *said]))
    return output


def _group_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def measure_laneway(python: str, workload: Workload, folder: Path) -> dict[str, float]:
    """Laneway's own throughput benchmark, in its own environment; it checks the work itself."""
    command = [python, str(BENCHMARKS / "throughput.py"), "--json", "--turns", str(workload.turns)]
    command += ["--conversations", str(workload.conversations), "--concurrency", str(workload.concurrency)]
    if workload.name == "eight":
        command += ["--lanes-per-actor", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = json.loads(run(command, folder, environment, workload.turns).splitlines()[-1])
    return {metric: found[metric] for metric in report.METRICS}


def measure_peer(name: str, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", f"{__package__}.child", name, "--folder", str(folder)]
    command += ["--turns", str(chosen.turns), "--lone-turns", str(chosen.lone_turns)]
    # The packages import each other's; none of them finds ours but by this.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[__package__.count(".") + 1])}
    try:
        run(command, folder, environment, 2 * chosen.turns + chosen.lone_turns)
        return json.loads((folder / "result.json").read_text())
    finally:
        Servers(folder).end_noted()


def measure(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The figures of each workload, and what the store said of itself."""
    # A peer may still write while it is killed: what is left then is not worth a failure.
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        if name != report.OURS:
            return measure_peer(name, chosen, Path(folder))
        wanted = workloads(chosen.turns, chosen.lone_turns)
        figures = {each.name: measure_laneway(chosen.laneway, each, Path(folder)) for each in wanted}
        return {"store": {}, "figures": figures}


def laneway_versions(python: str) -> dict[str, str]:
    code = "import importlib.metadata as m, json, platform; print(json.dumps({'python': platform.python_version()} | "
    code += "{name: m.version(name) for name in ('laneway', 'ray', 'duckdb', 'msgspec')}))"
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, timeout=60).stdout)


def left_out(names: list[str]) -> dict[str, str]:
    """Whom this machine can not run, and why."""
    if "restate" not in names or installed() is not None:
        return {}
    if shutil.which("npm") is None:
        return {"restate": "its server comes from the npm registry, and there is no npm on this machine"}
    return {"restate": "its server is not installed, or not offered for this platform; see `npm install` above"}


def measure_rounds(chosen: argparse.Namespace, names: list[str]) -> tuple[list[report.Round], dict[str, Any]]:
    rounds: list[report.Round] = []
    stores: dict[str, Any] = {}
    for number in range(chosen.rounds):
        # Who comes first changes from round to round, so that a drift of the machine meets everybody.
        first = number % len(names)
        found: dict[str, Any] = {}
        for name in names[first:] + names[:first]:
            began = time.monotonic()
            measured = measure(name, chosen)
            found[name] = measured["figures"]
            stores[name] = measured["store"]
            say(f"round {number + 1}/{chosen.rounds}  {progress(name, measured['figures'], time.monotonic() - began)}")
        rounds.append(found)
    return rounds, stores


def progress(name: str, figures: dict[str, Any], seconds: float) -> str:
    rates = "   ".join(f"{workload} {found['turns_per_second']:,.0f}/s" for workload, found in figures.items())
    return f"{report.NAMES[name]:<18} {rates}   lone p50 {figures['lone']['p50_ms']:.1f} ms   ({seconds:.0f} s)"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000, help="turns of the two throughput workloads (1000)")
    parser.add_argument("--lone-turns", type=int, default=200, help="turns of the lone conversation (200)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everybody is measured (3)")
    parser.add_argument("--only", action="append", choices=(report.OURS, *PEERS), help="only these; may be repeated")
    parser.add_argument("--laneway", default=str(ROOT / ".venv/bin/python"), help="the interpreter that has Laneway")
    parser.add_argument(
        "--json", type=Path, default=BENCHMARKS / "results" / "peers.json", help="where the result goes"
    )
    chosen = parser.parse_args()
    if min(chosen.turns, chosen.lone_turns, chosen.rounds) < 1:
        parser.error("turns and rounds must be 1 or more")
    return chosen


def main() -> int:
    chosen = arguments()
    # So that what is under way is ended as it is after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = [name for name in (report.OURS, *PEERS) if not chosen.only or name in chosen.only]
    missing = left_out(names)
    names = [name for name in names if name not in missing]
    for name, reason in missing.items():
        say(f"{report.NAMES[name]} IS LEFT OUT: {reason}")
    if not names:
        return 1
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        found = {"machine": machine(Path(folder))}
    say("  ".join(f"{key}: {value}" for key, value in found["machine"].items()))
    rounds, stores = measure_rounds(chosen, names)
    titles = {each.name: TITLES[each.name].format(**vars(each)) for each in workloads(chosen.turns, chosen.lone_turns)}
    settings = f"--turns {chosen.turns} --lone-turns {chosen.lone_turns} --rounds {chosen.rounds}"
    found |= {
        "command": f"make bench-peers ARGS='{settings}'",
        "versions": {"peers": packages(), "stores": stores},
        "left_out": missing,
        "workloads": {
            name: {
                "title": title,
                "results": report.results(rounds, name),
                "laneway_over_peer": report.ratios(rounds, name),
                "best_peer": {metric: report.best(rounds, name, metric) for metric in report.METRICS},
            }
            for name, title in titles.items()
        },
        "measured": rounds,
    }
    if report.OURS in names:
        found["versions"]["laneway"] = laneway_versions(chosen.laneway)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n\n".join(report.table(rounds, name, title) for name, title in titles.items()))
    for name, reason in missing.items():
        print(f"\n{report.NAMES[name]} IS LEFT OUT: {reason}")
    print(f"\nMedian (least–most) of {chosen.rounds} rounds; the last two columns are Laneway's over the peer's.")
    print(f"All figures, versions and the machine: {chosen.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
