"""Calls between Ray processes: Laneway's errors travel as data, and every failure of Ray itself is ambiguous."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, ParamSpec, TypeVar, cast

import msgspec
import ray
import ray.util
from ray import cloudpickle as _cloudpickle
from ray.exceptions import RayError
from ray.experimental import internal_kv as _internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..storage.commands import Answer, Rejected, Unit, decode_answers, encode_units
from ..storage.errors import LanewayError, NotFound, StoreUnavailable
from ..storage.ids import new_id
from .channel import ChannelAddress
from .channel_link import ChannelLink
from .sharded_client import ShardedLink
from .store_client import StoreLink

_P = ParamSpec("_P")
_T = TypeVar("_T")

cloudpickle: Any = _cloudpickle
internal_kv: Any = _internal_kv

RAY_FAILURES = (RayError, ConnectionError)
"""What a call raises when Ray could not carry it out, or cannot say whether it did."""


def actor_class(cls: type, **options: Any) -> Any:
    """`cls` as a Ray actor that takes no CPU from the tasks of a cluster's users, and whose calls Ray never repeats."""
    remote: Any = ray.remote
    return remote(num_cpus=0, max_task_retries=0, **options)(cls)


def named_actors(namespace: str) -> list[str]:
    """The names that are taken in a namespace."""
    entries: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in entries if entry["namespace"] == namespace and entry["name"]]


def node_id() -> str:
    """The node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def node_address() -> str:
    """The address at which Ray reaches this node: where it listens, a channel may, too."""
    address: Any = ray.util.get_node_ip_address()
    return str(address)


def nodes_alive() -> dict[str, float]:
    """The CPUs of each node of the cluster that is alive. Blocks for a call to Ray's control plane."""
    nodes: list[dict[str, Any]] = ray.nodes()
    return {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in nodes if node["Alive"]}


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """On that node alone; one that is gone fails the start. A soft wish let Ray put four actors on one node of two."""
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def to_pickle(value: Any) -> bytes:
    """Pickled by value where it has to be: what is defined in a program's main module reaches other processes."""
    return cloudpickle.dumps(value)


def from_pickle(data: bytes) -> Any:
    return cloudpickle.loads(data)


class Failure(msgspec.Struct, frozen=True):
    """An error of Laneway as the answer of a remote call."""

    rejected: Rejected


def answering(method: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T | Failure]]:
    """Let an actor's method answer with a Failure where it raises a LanewayError."""

    @functools.wraps(method)
    async def answer(*args: _P.args, **kwargs: _P.kwargs) -> _T | Failure:
        try:
            return await method(*args, **kwargs)
        except LanewayError as error:
            return Failure(Rejected.from_error(error))

    return answer


def answering_blocking(method: Callable[_P, _T]) -> Callable[_P, _T | Failure]:
    """The same for a method that is no coroutine."""

    @functools.wraps(method)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> _T | Failure:
        try:
            return method(*args, **kwargs)
        except LanewayError as error:
            return Failure(Rejected.from_error(error))

    return answer


def answered(answer: Any) -> Any:
    """The value of a remote call. Raises: the LanewayError that it answered with."""
    if isinstance(answer, Failure):
        raise answer.rejected.error()
    return answer


_KV_NAMESPACE = b"laneway"
_BLOCKING_S = 30.0


def keep_agents(namespace: str, agents: bytes) -> None:
    """Leave a runtime's definitions with Ray's control plane: they outlive the program that brought them.

    Actor arguments would do only below 100 kB; larger ones go with their owner, and a restart would miss them.
    """
    internal_kv._internal_kv_put(namespace.encode(), agents, overwrite=True, namespace=_KV_NAMESPACE)


def kept_agents(namespace: str) -> bytes:
    """What `keep_agents` left. Raises: NotFound."""
    agents = internal_kv._internal_kv_get(namespace.encode(), namespace=_KV_NAMESPACE)
    if agents is None:
        raise NotFound(f"the agents of namespace {namespace} are gone from Ray's control plane", namespace=namespace)
    return agents


def drop_agents(namespace: str) -> None:
    internal_kv._internal_kv_del(namespace.encode(), namespace=_KV_NAMESPACE)


class RayLink:
    """A store behind its actor. It never repeats by itself: what failed may have been committed."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._sender = new_id("snd")
        self._numbers = itertools.count(1)

    def next_call(self) -> tuple[str, int]:
        """The sender, and the number of its next commit, whichever way that takes."""
        return self._sender, next(self._numbers)

    async def channel(self) -> ChannelAddress:
        """Where the store's process serves its channel. Raises: StoreUnavailable."""
        try:
            return answered(await self._actor.channel.remote())
        except RAY_FAILURES as error:
            raise _unavailable(error) from error

    async def commit(self, units: list[Unit]) -> list[Answer]:
        try:
            data = answered(await self._actor.commit.remote(*self.next_call(), encode_units(units)))
        except RAY_FAILURES as error:
            raise _unavailable(error) from error
        return decode_answers(data)

    async def call(self, method: str, *args: Any) -> Any:
        try:
            return answered(await self._actor.call.remote(method, *args))
        except RAY_FAILURES as error:
            raise _unavailable(error) from error

    def call_blocking(self, method: str, *args: Any) -> Any:
        try:
            return answered(self._actor.call.remote(method, *args).future().result(timeout=_BLOCKING_S))
        except (*RAY_FAILURES, FutureTimeout) as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        return


def _unavailable(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"the store's actor gives no answer: {type(error).__name__}")


def store_link(store: Any) -> StoreLink:
    """The store's actor over its channel, and over Ray's calls where that cannot be had; of a list of actors, one for
    each shard, all of them as one."""
    if isinstance(store, list):
        return ShardedLink([store_link(actor) for actor in cast("list[Any]", store)])
    link = RayLink(store)
    return ChannelLink(link, link.channel)
