"""Placement: an actor of its own while there is room, then the least loaded one."""

from __future__ import annotations

from laneway.actors.placement import Placement, emptiest_node


def test_each_conversation_gets_an_actor_of_its_own_while_there_is_room() -> None:
    placement = Placement(max_actors=3)
    for name in ("a1", "a2", "a3"):
        assert placement.wants_new_actor()
        placement.learn(name, [])
        placement.place(f"c-{name}")
    assert placement.loads() == {"a1": 1, "a2": 1, "a3": 1}
    assert not placement.wants_new_actor()


def test_an_unused_actor_is_taken_before_another_is_wanted() -> None:
    placement = Placement(max_actors=3)
    placement.learn("a1", ["x"])
    placement.learn("a2", [])
    assert not placement.wants_new_actor()
    assert placement.place("y") == "a2"
    assert placement.wants_new_actor()


def test_then_the_least_loaded_actor_is_taken() -> None:
    placement = Placement(max_actors=2)
    placement.learn("a1", ["x", "y"])
    placement.learn("a2", ["z"])
    assert placement.place("w") == "a2"
    assert placement.actor_of("w") == "a2"
    assert placement.loads() == {"a1": 2, "a2": 2}


def test_a_dead_actor_loses_its_conversations_and_its_load() -> None:
    placement = Placement(max_actors=2)
    placement.learn("a1", ["x", "y"])
    placement.learn("a2", ["z"])
    assert sorted(placement.remove("a1")) == ["x", "y"]
    assert placement.actor_of("x") is None
    assert placement.place("x") == "a2"
    assert placement.loads() == {"a2": 2}
    assert placement.remove("a1") == []


def test_a_conversation_that_moved_is_counted_once() -> None:
    placement = Placement(max_actors=2)
    placement.learn("a1", ["x"])
    placement.learn("a2", ["x"])
    assert placement.loads() == {"a1": 0, "a2": 1}
    assert placement.actor_of("x") == "a2"


def test_the_node_with_the_fewest_processes_a_cpu_is_taken() -> None:
    """Half of the lanes on each of two equal nodes, twice as many where there are twice the CPUs."""
    cpus = {"a": 2.0, "b": 4.0, "head": 0.0}
    members = dict.fromkeys(cpus, 0)
    for _ in range(6):
        node = emptiest_node(cpus, members)
        assert node is not None
        members[node] += 1
    assert members == {"a": 2, "b": 4, "head": 0}


def test_nodes_without_cpus_are_better_than_none() -> None:
    assert emptiest_node({"head": 0.0, "tail": 0.0}, {"head": 1}) == "tail"
    assert emptiest_node({}, {}) is None


def test_a_node_that_refused_the_last_process_is_avoided_while_there_is_another() -> None:
    cpus = {"a": 2.0, "b": 2.0}
    assert emptiest_node(cpus, {"b": 5}) == "a"
    assert emptiest_node(cpus, {"b": 5}, avoid="a") == "b"
    assert emptiest_node({"a": 2.0}, {}, avoid="a") == "a"
    assert emptiest_node(cpus, {"b": 5}, avoid="c") == "a"
