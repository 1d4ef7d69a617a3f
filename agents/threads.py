"""Blocking functions run in threads of their own, so that they never stall the lanes that share the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from ..storage.errors import ToolError, described


async def run_in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function in a daemon thread and return its value or raise its exception.

    A thread a call, not a pool: a function that outlives its timeout cannot be stopped, and it must neither hold a
    place that another tool needs nor keep the process from exiting. When the caller is cancelled, the value is dropped.

    Raises: ToolError when the function raises SystemExit or another exception that would end the event loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def work() -> None:
        value, failure = None, None
        try:
            value = context.run(function, *args, **kwargs)
        except BaseException as error:  # whatever a thread raises belongs to the one who waits
            failure = contained(error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name=f"laneway-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return await future


def contained(error: BaseException) -> Exception:
    """`error` itself, or a ToolError in the place of one that a future refuses or that would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return ToolError(f"the function raised {described(error)[:500]}")
