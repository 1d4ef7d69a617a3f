"""Tools: declaration, arguments, execution, digests, and how they travel."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from ray import cloudpickle

from laneway.agents import Completed, NeverStarted, SafeToRetry, Tool, ToolContext, tool
from laneway.storage.errors import InvalidInput, ToolError

CTX = ToolContext(
    conversation_id="c",
    submission_id="s",
    run_id="r",
    call_id="call",
    idempotency_key="key",
    queue_sequence=1,
    turn=1,
    position=0,
    attempt=1,
)


class Address(BaseModel):
    street: str
    number: int = 1


@tool(effect="idempotent", timeout_s=5)
async def ship(ctx: ToolContext, order: str, to: Address, kind: Literal["air", "sea"] = "sea") -> dict[str, Any]:
    """Ship an order."""
    return {"order": order, "to": to, "kind": kind, "key": ctx.idempotency_key}


@tool
def add(left: int, right: Annotated[int, Field(description="the other one", ge=0)] = 2) -> int:
    return left + right


def test_declaration() -> None:
    assert (ship.name, ship.description, ship.effect, ship.timeout_s) == ("ship", "Ship an order.", "idempotent", 5.0)
    assert (add.effect, add.approval, add.timeout_s, add.description) == ("uncertain", False, 30.0, "")
    assert set(ship.parameters["properties"]) == {"order", "to", "kind"}
    assert ship.parameters["required"] == ["order", "to"]
    assert add.parameters["properties"]["right"]["description"] == "the other one"
    assert add.schema()["function"]["name"] == "add"
    assert add(1, right=4) == 5


def test_a_tool_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        add.name = "other"  # type: ignore[misc]


def test_parse() -> None:
    assert add.parse('{"left": 1}') == {"left": 1, "right": 2}
    parsed = ship.parse('{"order": "o", "to": {"street": "Elm"}}')
    assert parsed == {"order": "o", "to": Address(street="Elm"), "kind": "sea"}


def test_no_text_counts_as_no_arguments() -> None:
    @tool
    def now() -> int:
        return 1

    assert now.parse("") == now.parse("{}") == {}
    assert now.parameters["properties"] == {}
    with pytest.raises(InvalidInput, match="left"):
        add.parse("")


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("{", "", "not JSON"),
        ("[1]", "", "JSON object"),
        ("null", "", "JSON object"),
        ('{"left": NaN}', "", "not JSON"),
        ('{"left": "\\ud800"}', "", "not JSON"),
        ('{"left": "\ud800"}', "", "not JSON"),
        ('{"left": "x"}', "left", "integer"),
        ('{"left": 1, "right": -1}', "right", "greater than"),
        ('{"left": 1, "ctx": 1}', "ctx", "Unexpected"),
        ("[" * 100_000, "", "not JSON"),
    ],
)
def test_bad_arguments(text: str, field: str, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        add.parse(text)
    error = caught.value
    assert error.code == "tool_arguments_invalid"
    assert [item["field"] for item in error.details["errors"]] == [field]
    assert part in error.message
    assert len(error.message) <= 1_000


def test_many_errors_are_bounded() -> None:
    with pytest.raises(InvalidInput, match="and 91 more") as caught:
        add.parse("{" + ",".join(f'"x{n}": 1' for n in range(100)) + "}")
    assert len(caught.value.details["errors"]) == 10


async def test_async_function_and_models_in_the_result() -> None:
    result = await ship.call(CTX, ship.parse('{"order": "o", "to": {"street": "Elm", "number": 3}}'))
    assert result == {"order": "o", "to": {"street": "Elm", "number": 3}, "kind": "sea", "key": "key"}


async def test_sync_function_runs_beside_the_loop() -> None:
    @tool
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await where.call(CTX, {}) is False


async def test_a_parameter_may_have_any_name() -> None:
    @tool
    def odd(function: int, self: int, args: int, schema: int, model_config: int) -> int:
        return function + self + args + schema + model_config

    kwargs = odd.parse('{"function": 1, "self": 1, "args": 1, "schema": 1, "model_config": 1}')
    assert await odd.call(CTX, kwargs) == 5


async def test_a_blocked_tool_does_not_stall_others() -> None:
    gate, entered = threading.Event(), [threading.Event() for _ in range(40)]

    @tool
    def block(n: int) -> int:
        entered[n].set()
        gate.wait()
        return n

    calls = [asyncio.create_task(block.call(CTX, {"n": n})) for n in range(40)]
    assert await asyncio.to_thread(lambda: all(event.wait(10) for event in entered))
    gate.set()
    assert await asyncio.gather(*calls) == list(range(40))


async def test_a_cancelled_call_of_a_blocked_tool_ends() -> None:
    gate, entered = threading.Event(), threading.Event()

    @tool
    def block() -> None:
        entered.set()
        gate.wait()

    call = asyncio.create_task(block.call(CTX, {}))
    await asyncio.to_thread(entered.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()


@pytest.mark.parametrize("exception", [SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_a_tool_cannot_end_the_event_loop(exception: BaseException) -> None:
    @tool
    def leave() -> None:
        raise exception

    with pytest.raises(ToolError, match=type(exception).__name__):
        await leave.call(CTX, {})


async def test_an_async_tool_cannot_end_the_event_loop() -> None:
    @tool
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(ToolError, match="SystemExit"):
        await leave.call(CTX, {})


async def test_other_exceptions_pass() -> None:
    @tool
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        await divide.call(CTX, {})


@pytest.mark.parametrize("value", [object(), b"\xff", {"x": object()}])
async def test_a_result_that_is_no_json(value: object) -> None:
    @tool
    def give() -> Any:
        return value

    with pytest.raises(ToolError) as caught:
        await give.call(CTX, {})
    assert caught.value.code == "tool_result_invalid"


def reject(field: str, function: Any, **options: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        tool(**options)(function) if options else tool(function)
    assert caught.value.details["field"] == field


def test_bad_declarations() -> None:
    def fine(x: int) -> int:
        return x

    async def generator(x: int) -> Any:
        yield x

    def undefined(x: NoSuchType) -> int:  # type: ignore[name-defined]  # noqa: F821
        return x

    reject("effect", fine, effect="none")
    for seconds in (0, -1, float("nan"), float("inf"), True, "1"):
        reject("timeout_s", fine, timeout_s=seconds)
    for name in ("", "a b", "x" * 65, "é", 3):
        reject("name", fine, name=name)
    for attempts in (0, -1, 101, True, 2.0, "2"):
        reject("attempts_max", fine, effect="idempotent", attempts_max=attempts)
    reject("attempts_max", fine, attempts_max=2)
    reject("approval", fine, approval="yes")
    reject("reconcile", fine, reconcile=3)
    reject("description", fine, description=3)
    reject("version", fine, version="")
    reject("function", 3)
    reject("function", generator)
    reject("name", lambda x: x)
    reject("rest", eval("lambda *rest: 1"), name="a")
    reject("rest", eval("lambda **rest: 1"), name="a")
    reject("x", eval("lambda x, /: 1"), name="a")
    reject("ctx", eval("lambda x, ctx: 1"), name="a")
    reject("parameters", undefined)
    reject("parameters", _foreign)


def _foreign(x: threading.Lock) -> int:
    return 1


def test_approval() -> None:
    assert not add.needs_approval({})
    big = tool(approval=lambda arguments: arguments["left"] > 10)(add.function)
    assert big.needs_approval({"left": 11})
    assert not big.needs_approval({"left": 10})


def test_digest_follows_the_definition() -> None:
    def make(**options: Any) -> Tool:
        return tool(**{"name": "x", **options})(add.function)

    base = make()
    assert base.digest == make().digest
    others = [
        make(name="y"),
        make(description="d"),
        make(effect="readonly"),
        make(timeout_s=1),
        make(approval=True),
        make(approval=lambda arguments: True),
        make(version="1"),
        make(version="2"),
        tool(name="x")(lambda left: left),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == len(others) + 1


def test_a_version_stands_for_the_source() -> None:
    def one(x: int) -> int:
        return x

    def two(x: int) -> int:
        return x + 1

    assert tool(name="t")(one).digest != tool(name="t")(two).digest
    assert tool(name="t", version="1")(one).digest == tool(name="t", version="1")(two).digest


def test_digest_without_source_follows_the_code() -> None:
    def make(body: str) -> Tool:
        names: dict[str, Any] = {}
        exec(f"def f(x: int):\n    return {body}", names)
        return tool(names["f"])

    assert make("x in {'a', 'b', 'c'}").digest == make("x in {'a', 'b', 'c'}").digest
    assert make("x + 1").digest != make("x + 2").digest


def test_a_tool_of_a_module_travels_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(ship)) is ship


async def test_a_tool_of_a_function_travels_by_value() -> None:
    secret = 7

    @tool
    def local(x: int) -> int:
        return x + secret

    twin = cloudpickle.loads(cloudpickle.dumps(local))
    assert twin is not local
    assert twin.digest == local.digest
    assert await twin.call(CTX, twin.parse('{"x": 1}')) == 8


async def test_raw_tool() -> None:
    def function(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return [ctx.call_id, arguments]

    raw = Tool.raw("any name: é", function, effect="readonly")
    assert await raw.call(CTX, raw.parse('{"x": [1]}')) == ["call", {"x": [1]}]
    assert raw.parse("") == {}
    assert raw.schema()["function"]["parameters"]["type"] == "object"
    for bad in ("{", "[]"):
        with pytest.raises(InvalidInput) as caught:
            raw.parse(bad)
        assert caught.value.code == "tool_arguments_invalid"
    for name in ("", "x" * 257, None):
        with pytest.raises(InvalidInput) as caught:
            Tool.raw(name, function, effect="readonly")  # type: ignore[arg-type]
        assert caught.value.details["field"] == "name"


@pytest.mark.parametrize("answer", [Completed({"x": 1}, "seen"), NeverStarted(), SafeToRetry("same key"), None])
async def test_reconcile(answer: Any) -> None:
    def sync(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return answer if arguments == {"left": 1} and ctx is CTX else "wrong"

    async def asynchronous(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return sync(ctx, arguments)

    for reconcile in (sync, asynchronous):
        declared = tool(reconcile=reconcile)(add.function)
        assert await declared.run_reconcile(CTX, {"left": 1}) == answer


async def test_reconcile_without_or_with_a_wrong_answer() -> None:
    assert await add.run_reconcile(CTX, {}) is None
    for answer in (True, Completed(object())):
        wrong = tool(reconcile=lambda ctx, arguments, answer=answer: answer)(add.function)
        with pytest.raises(ToolError) as caught:
            await wrong.run_reconcile(CTX, {})
        assert caught.value.code == "reconcile_invalid"
