"""An abstract model of the relay's replication rules, run under random schedules.

Nodes form a tree below the master (node 0). Messages wait in a pool and arrive in any order; nodes
are killed, move, fall behind and join. When nothing is left to deliver, every live node must hold
the same set of updates, each exactly once, and none of a live origin may be missing.

Each rule of the protocol can be switched off (`Rules`), to show that the model notices.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

Vector = dict[int, int]
UpdateId = tuple[int, int]  # origin, counter

MASTER = 0
RING = 6  # updates a node keeps although the master holds them


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules that docs/internals/replication.md names, each of which can be switched off."""

    two_way_replay: bool = True  # ATTACH is answered by the parent's vector, and the child replays
    retention: bool = True  # an update stays in the ring until the master's beacon covers it
    reapplication: bool = True  # a snapshot's installer applies again what it holds beyond the cut
    eviction_freeze: bool = True  # nothing leaves the ring while a snapshot is on its way


@dataclasses.dataclass(frozen=True)
class Message:
    """One message under way over the link that stood when it was sent."""

    source: int
    target: int
    link: int
    kind: str  # "update", "attach", "vector", "need snapshot", "attach again"
    update: UpdateId = (0, 0)
    vector: Vector = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The master's copy at a cut, under way to one node."""

    target: int
    cut: Vector
    applied: Counter[UpdateId]


class Node:
    """A replica: what it has applied, received and kept."""

    def __init__(self) -> None:
        self.alive = True
        self.parent: int | None = None
        self.children: set[int] = set()
        self.counter = 0  # of its own last update
        self.received: Vector = {}
        self.applied: Counter[UpdateId] = Counter()
        self.held: dict[UpdateId, int] = {}  # waiting for a gap to fill -> who sent it
        self.ring: list[UpdateId] = []
        self.master_vector: Vector = {}  # from the beacon
        self.awaits_snapshot = False


class Model:
    """A tree of nodes under one random schedule."""

    def __init__(self, seed: int, rules: Rules, nodes: int = 7) -> None:
        self.random = random.Random(seed)
        self.rules = rules
        self.nodes = [Node() for _ in range(nodes)]
        self.links: dict[int, int] = {}  # child -> number of the link to its parent
        self.last_link = 0
        self.pool: list[Message] = []
        self.snapshots: list[Snapshot] = []
        self.faults: Counter[str] = Counter()
        for child in range(1, nodes):
            self.attach(child, (child - 1) // 2)

    def run(self, steps: int = 1200) -> set[str]:
        """Runs a random schedule, lets everything arrive, and names what is broken."""
        for _ in range(steps):
            self.step()
        while self.pool or self.snapshots:
            self.deliver_something()
        return self.broken()

    # --- the schedule

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.25:
            self.produce(self.random.choice(self.workers()))
        elif choice < 0.95:
            self.deliver_something()
        elif choice < 0.96:
            self.kill()
        elif choice < 0.97:
            self.fall_behind()
        elif choice < 0.98:
            self.move()
        elif choice < 0.985:
            self.join()
        else:
            self.beacon()

    def workers(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if node.alive and i != MASTER]

    def deliver_something(self) -> None:
        if self.snapshots and (not self.pool or self.random.random() < 0.03):
            self.install(self.snapshots.pop(self.random.randrange(len(self.snapshots))))
        elif self.pool:
            self.deliver(self.pool.pop(self.random.randrange(len(self.pool))))

    def kill(self) -> None:
        """A node dies: its first child goes under the master, the others under that child."""
        if len(self.workers()) <= 3:
            return
        self.faults["kill"] += 1
        dead = self.random.choice(self.workers())
        node = self.nodes[dead]
        node.alive = False
        self.nodes[self.parent(dead)].children.discard(dead)
        del self.links[dead]
        orphans = sorted(node.children)
        for orphan in orphans:
            self.nodes[orphan].parent = None
            del self.links[orphan]
        for place, orphan in enumerate(orphans):
            self.attach(orphan, MASTER if place == 0 else orphans[0])

    def fall_behind(self) -> None:
        """A parent drops what waits for one child, which attaches anew."""
        self.faults["lag"] += 1
        child = self.random.choice(self.workers())
        parent = self.parent(child)
        self.pool = [
            m
            for m in self.pool
            if not (m.source == parent and m.target == child and m.kind == "update")
        ]
        self.send(parent, child, "attach again")

    def move(self) -> None:
        self.faults["move"] += 1
        child = self.random.choice(self.workers())
        below = self.subtree(child)
        self.attach(
            child, self.random.choice([i for i in [MASTER, *self.workers()] if i not in below])
        )

    def join(self) -> None:
        if len(self.workers()) >= 9:
            return
        self.faults["join"] += 1
        parent = self.random.choice([MASTER, *self.workers()])
        self.nodes.append(Node())
        self.attach(len(self.nodes) - 1, parent)

    def beacon(self) -> None:
        vector = self.nodes[MASTER].received
        for i in self.workers():
            if self.random.random() < 0.7:
                self.nodes[i].master_vector = dict(vector)
                self.evict(i)

    def subtree(self, root: int) -> set[int]:
        found = {root}
        for child in self.nodes[root].children:
            found |= self.subtree(child)
        return found

    def parent(self, child: int) -> int:
        parent = self.nodes[child].parent
        assert parent is not None
        return parent

    # --- the rules

    def produce(self, origin: int) -> None:
        node = self.nodes[origin]
        node.counter += 1
        self.receive(origin, (origin, node.counter), sender=None)

    def receive(self, i: int, update: UpdateId, sender: int | None) -> None:
        """Accepts each origin's updates in counter order, once; holds later ones."""
        node = self.nodes[i]
        origin, counter = update
        if counter <= node.received.get(origin, 0):
            return
        node.held[update] = -1 if sender is None else sender
        self.accept_held(i)

    def accept_held(self, i: int) -> None:
        node = self.nodes[i]
        for origin, counter in list(node.held):
            if counter <= node.received.get(origin, 0):
                del node.held[origin, counter]
        for origin in sorted({origin for origin, _ in node.held}):
            while (following := (origin, node.received.get(origin, 0) + 1)) in node.held:
                self.accept(i, following, node.held.pop(following))

    def accept(self, i: int, update: UpdateId, sender: int) -> None:
        """Applies, keeps, and relays to all neighbours but the one it came from."""
        node = self.nodes[i]
        node.received[update[0]] = update[1]
        node.applied[update] += 1
        node.ring.append(update)
        self.evict(i)
        for neighbour in sorted(node.children) + ([] if node.parent is None else [node.parent]):
            if neighbour != sender:
                self.send(i, neighbour, "update", update=update)

    def evict(self, i: int) -> None:
        node = self.nodes[i]
        if self.rules.eviction_freeze and node.awaits_snapshot:
            return
        covered = node.received if i == MASTER else node.master_vector
        kept: list[UpdateId] = []
        excess = len(node.ring) - RING
        for origin, counter in node.ring:
            may_go = counter <= covered.get(origin, 0) or not self.rules.retention
            if excess > 0 and may_go:
                excess -= 1
            else:
                kept.append((origin, counter))
        node.ring = kept

    def attach(self, child: int, parent: int) -> None:
        """Closes the link to the old parent, then tells the new one this node's vector."""
        node = self.nodes[child]
        if node.parent is not None:
            self.nodes[node.parent].children.discard(child)
        self.last_link += 1
        self.links[child] = self.last_link
        node.parent = parent
        self.nodes[parent].children.add(child)
        self.send_vector(child)

    def send_vector(self, child: int) -> None:
        self.send(child, self.parent(child), "attach", vector=dict(self.nodes[child].received))

    def send(
        self,
        source: int,
        target: int,
        kind: str,
        update: UpdateId = (0, 0),
        vector: Vector | None = None,
    ) -> None:
        link = self.link_between(source, target)
        if link is not None:
            self.pool.append(Message(source, target, link, kind, update, vector or {}))

    def link_between(self, a: int, b: int) -> int | None:
        if self.nodes[a].parent == b:
            return self.links.get(a)
        if self.nodes[b].parent == a:
            return self.links.get(b)
        return None

    def deliver(self, message: Message) -> None:
        source, target = message.source, message.target
        node = self.nodes[target]
        if not node.alive or self.link_between(source, target) != message.link:
            return
        if message.kind == "update":
            self.receive(target, message.update, source)
        elif message.kind == "attach":
            if self.ring_reaches(target, message.vector):
                self.replay(target, source, message.vector)
            else:
                self.send(target, source, "need snapshot")
            if self.rules.two_way_replay:
                self.send(target, source, "vector", vector=dict(node.received))
        elif message.kind == "vector":
            self.replay(target, source, message.vector)
        elif message.kind == "attach again":
            self.send_vector(target)
        elif not node.awaits_snapshot:  # one request outstanding
            self.faults["snapshot"] += 1
            node.awaits_snapshot = True
            master = self.nodes[MASTER]
            self.snapshots.append(Snapshot(target, dict(master.received), Counter(master.applied)))

    def ring_reaches(self, i: int, vector: Vector) -> bool:
        ring = set(self.nodes[i].ring)
        return all(
            (origin, counter) in ring
            for origin, last in self.nodes[i].received.items()
            for counter in range(vector.get(origin, 0) + 1, last + 1)
        )

    def replay(self, source: int, target: int, vector: Vector) -> None:
        for origin, counter in self.nodes[source].ring:
            if counter > vector.get(origin, 0):
                self.send(source, target, "update", update=(origin, counter))

    def install(self, snapshot: Snapshot) -> None:
        """Takes the master's copy and applies again what lies beyond its cut; attaches anew."""
        i = snapshot.target
        node = self.nodes[i]
        if not node.alive:
            return
        beyond = [u for u in node.ring if u[1] > snapshot.cut.get(u[0], 0)]
        node.awaits_snapshot = False
        node.received = dict(snapshot.cut)
        node.applied = Counter(snapshot.applied)
        node.ring = []
        if self.rules.reapplication:
            for update in sorted(beyond):
                if update[1] == node.received.get(update[0], 0) + 1:
                    node.received[update[0]] = update[1]
                    node.applied[update] += 1
                    node.ring.append(update)
        self.accept_held(i)
        self.send_vector(i)
        for child in sorted(node.children):
            self.send(i, child, "attach again")

    # --- the promises

    def broken(self) -> set[str]:
        """The promises that do not hold once everything has arrived."""
        found: set[str] = set()
        reference = set(self.nodes[MASTER].applied)
        for i in [MASTER, *self.workers()]:
            node = self.nodes[i]
            if any(times > 1 for times in node.applied.values()):
                found.add("applied twice")
            if set(node.applied) != reference:
                found.add("replicas differ")
            own = {(i, counter) for counter in range(1, node.counter + 1)}
            if not own <= reference:
                found.add("update of a live origin lost")
        return found
