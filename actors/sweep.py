"""The sweep over durable state: page by page, resumable, so that neither a backlog nor an outage loses any of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from ..recovery.alerts import Alert, Alerts
from ..recovery.attention import attention
from ..storage.contract import ControlRow, ScanPage
from .store_client import StoreClient

SWEEP_ROWS = 1024  # bounds a page, and with it the conversations that one call hands to a process
_alerts = logging.getLogger("laneway.alerts")
_log = logging.getLogger("laneway.supervisor")


class Sweep:
    """Looks for open work that nobody live looks after, and tells of what is overdue (Specification 14 and 16)."""

    def __init__(
        self,
        store: StoreClient,
        alerts: Alerts,
        counts: Counter[str],
        now_ms: Callable[[], int],
        *,
        rows_max: int = SWEEP_ROWS,
    ) -> None:
        self._store = store
        self._due = alerts
        self._counts = counts
        self._now_ms = now_ms
        self._rows_max = rows_max
        self._cursor: tuple[str, int] | None = None
        self._decided: str | None = None
        self._overdue = 0

    async def run(self, activate: Callable[[list[str]], Awaitable[object]]) -> None:
        """Look at every open row and hand conversations to `activate`, a page at a time.

        A pass that was interrupted goes on where it stood at the next call: its page is looked at again, and no page
        before it. An outage of the store is waited out; it uses no budget, and nothing is ever deleted here.
        """
        while True:
            page: ScanPage = await self._store.read("scan_nonterminal", self._cursor, self._rows_max)
            now_ms = self._now_ms()
            needed, decided = attention(page.rows, now_ms, self._decided)
            self._tell(page.rows, now_ms, self._decided)
            if needed:
                self._counts["activated"] += len(needed)
                await activate(needed)
            self._cursor, self._decided = page.cursor, decided
            if self._cursor is None:
                self._decided = None
                self._counts["sweeps"] += 1
                self._count_overdue()
                return

    def _count_overdue(self) -> None:
        """The count is that of all shards, each of which has a sweep of its own."""
        before, self._overdue = self._overdue, self._due.pass_over()
        self._counts["overdue"] += self._overdue - before

    def _tell(self, rows: tuple[ControlRow, ...], now_ms: int, decided: str | None) -> None:
        for alert in self._due.due(rows, now_ms, decided):
            self._counts[f"alerts:{alert.kind}"] += 1
            _alerts.warning("%s", alert_line(alert))


def alert_line(alert: Alert) -> str:
    """An alert as one line of JSON, for the programs that read logs."""
    fields = msgspec.to_builtins(alert)
    return msgspec.json.encode({"alert": fields.pop("kind"), **fields}).decode()
