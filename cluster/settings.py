"""Settings of a runtime: arguments first, then LANEWAY_... from the environment, then defaults that work."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ..actors.lane.settings import LaneSettings
from ..recovery.alerts import AlertSettings
from ..storage.errors import InvalidInput
from ..storage.sharding import SHARDS_MAX

NAMESPACE_DEFAULT = "laneway"
STORE_DEFAULT = "laneway.duckdb"


class Settings(BaseSettings):
    """All that may be set, with its bounds; times in seconds. LANEWAY_MAX_ACTORS=4 sets `max_actors`, and so on."""

    model_config = SettingsConfigDict(env_prefix="LANEWAY_", extra="forbid", frozen=True)

    namespace: str = Field(NAMESPACE_DEFAULT, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    shards: int = Field(1, ge=1, le=SHARDS_MAX)
    max_actors: int | None = Field(None, ge=1, le=10_000)
    lanes_per_actor: int = Field(256, ge=1, le=1_000_000)
    idle_s: float = Field(300.0, gt=0)
    lease_ttl_s: float = Field(10.0, ge=0.5, le=3600)
    sweep_s: float = Field(5.0, gt=0, le=3600)
    recoveries_max: int = Field(10, ge=0, le=1_000_000)
    abort_grace_s: float = Field(1.0, ge=0, le=3600)
    abandon_after_s: float = Field(5.0, ge=0, le=3600)
    checkpoint_records: int = Field(64, ge=1, le=1_000_000)
    faults_max: int = Field(5, ge=1, le=1_000_000)
    drain_grace_s: float = Field(5.0, ge=0, le=3600)
    alert_unknown_s: float = Field(60.0, ge=0)
    alert_approval_s: float = Field(3600.0, ge=0)
    alert_settlement_s: float = Field(60.0, ge=0)
    alert_work_s: float = Field(300.0, ge=0)
    alert_interval_s: float = Field(300.0, gt=0)
    stepwise: bool = False
    record_deltas: bool = False
    spare_actors: int = Field(1, ge=0, le=16)
    start_timeout_s: float = Field(60.0, gt=0)

    def lane_settings(self) -> LaneSettings:
        """What the lanes of each process are told."""
        return LaneSettings(
            recoveries_max=self.recoveries_max,
            abort_grace_s=self.abort_grace_s,
            abandon_after_s=self.abandon_after_s,
            checkpoint_records=self.checkpoint_records,
            faults_max=self.faults_max,
            drain_grace_s=self.drain_grace_s,
            stepwise=self.stepwise,
            record_deltas=self.record_deltas,
            lanes_per_actor=self.lanes_per_actor,
            idle_s=self.idle_s,
            lease_ttl_s=self.lease_ttl_s,
        )

    def alert_settings(self) -> AlertSettings:
        """After how long open work is overdue, and how often that is told."""
        return AlertSettings(
            unknown_s=self.alert_unknown_s,
            approval_s=self.alert_approval_s,
            settlement_s=self.alert_settlement_s,
            interval_s=self.alert_interval_s,
            work_s=self.alert_work_s,
        )

    def actors_for(self, cpus: float) -> int:
        """Processes that host lanes: twice the CPUs, or 16 times where each conversation has one of its own."""
        if self.max_actors is not None:
            return self.max_actors
        return max(1, int(cpus * (16 if self.lanes_per_actor == 1 else 2)))


def load_settings(**given: Any) -> Settings:
    """Settings from arguments and environment. Raises: InvalidInput with `field` for the first that does not fit."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "settings"
        if first["type"] == "extra_forbidden":
            names = ", ".join(sorted(Settings.model_fields))
            raise InvalidInput(f"no setting is named {field!r}; there are {names}", field=field) from error
        limit = next(iter(first.get("ctx", {}).values()), None)
        raise InvalidInput(f"{field}: {first['msg']}", field=field, limit=limit) from error
