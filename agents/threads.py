"""Blocking functions run in threads of their own, so that they never stall the lanes that share the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ..storage.errors import ToolError, described

left_behind: contextvars.ContextVar[list[threading.Thread] | None] = contextvars.ContextVar("left_behind", default=None)
"""Where set, threads whose caller was cancelled while they still worked."""


async def run_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a user's function: an async one on the event loop, any other in a thread of its own."""
    try:
        if is_async(function):
            return await function(*args, **kwargs)
        value = await run_in_thread(function, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise contained(error) from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function makes a coroutine, as far as its definition tells."""
    target = function.func if isinstance(function, functools.partial) else function
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


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

    thread = threading.Thread(target=work, name=f"laneway-{getattr(function, '__name__', 'call')}", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        behind = left_behind.get()
        if behind is not None:
            behind.append(thread)
        raise


def contained(error: BaseException) -> Exception:
    """`error` itself, or a ToolError in the place of one that a future refuses or that would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return ToolError(f"the function raised {described(error)[:500]}")
