"""What a lane may be told: bounds and switches, with defaults that work."""

from __future__ import annotations

import msgspec

from ...storage.values import DEFAULT_LIMITS, Limits


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the lanes of one process; times in seconds."""

    stepwise: bool = False
    """Commit each command alone: for crash tests."""
    record_deltas: bool = False
    """Append text and reasoning deltas to the log, coalesced."""
    lanes_per_actor: int = 256
    idle_s: float = 300.0
    """An idle lane leaves memory after this time."""
    lease_ttl_s: float = 10.0
    """How long a process that fell silent keeps its lanes."""
    model_backoff_first_s: float = 0.2
    model_backoff_most_s: float = 20.0
    tool_backoff_first_s: float = 0.2
    """The wait after the first failure of a tool, or of a reconciler, that is tried again; it doubles with each one."""
    tool_backoff_most_s: float = 20.0
    recoveries_max: int = 10
    """How often in a row a run may lose its owner without recording anything new, before it fails."""
    abort_grace_s: float = 1.0
    """How long a tool that looks at `ctx.aborted` has to end by itself, before it is cancelled."""
    abandon_after_s: float = 5.0
    """How long an effect that was cancelled may take to end, before the lane goes on without it."""
    checkpoint_records: int = 64
    """A conversation is checkpointed when it settles something and has so many records since the last checkpoint."""
    checkpoint_bytes_max: int = 1 << 20
    """A larger checkpoint is not saved: work that is open over a long history makes it large."""
    faults_max: int = 5
    """How often in a row a lane may fail in a way that nobody expected, before its conversation is quarantined."""
    fault_backoff_first_s: float = 0.5
    """The wait after the first such failure; it doubles with each one."""
    drain_grace_s: float = 5.0
    """How long tool calls in flight may go on when their process is stopped as planned."""
    limits: Limits = DEFAULT_LIMITS
