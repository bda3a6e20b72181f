"""Where each rank belongs, from the deployment alone.

The rule: ranks fill the nodes in the deployment's order, one rank a slot. Placement then follows from two numbers that
the operator wrote down, and neither the plan nor the records can move a rank to another node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mint2m_verify import layout
from mint2m_verify.documents import Deployment, Plan, RankSessions, RunProfile
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check
from mint2m_verify.seal import counted

#: What a rank without an accelerator records.
_NO_ACCELERATOR = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Node and slot of one rank."""

    node_ip: str
    slot: int

    def __str__(self) -> str:
        return f"{self.node_ip} slot {self.slot}"


def expected_places(deployment: Deployment, world_size: int) -> tuple[Place, ...]:
    """The place of each rank, [world_size]; shorter where the nodes do not suffice."""
    each = deployment.accelerators_per_node
    room = min(world_size, each * len(deployment.node_ips))
    return tuple(Place(node_ip=deployment.node_ips[rank // each], slot=rank % each) for rank in range(room))


def check_placement(plan: Plan, deployment: Deployment, profile: RunProfile, sessions: RankSessions) -> Check:
    """Deployment, plan, what the ranks were told and what they observed: one place for each rank."""
    world = profile.topology.world_size
    places = expected_places(deployment, world)
    if len(places) < world:
        yield _fault(
            layout.DEPLOYMENT, "/node_ips", f"{world} slots", f"{len(places)} slots", "placement.too-few-slots"
        )
    planned = {rank.rank: rank for rank in plan.placement.ranks}
    if sorted(rank.rank for rank in plan.placement.ranks) != list(range(world)):
        numbers = ", ".join(str(rank.rank) for rank in plan.placement.ranks)
        yield _fault(layout.PLAN, "/placement/ranks", f"ranks 0 to {world - 1}", numbers)
    yield from _bundles(plan)
    for rank, place in enumerate(places):
        if rank in planned:
            have = Place(node_ip=planned[rank].node_ip, slot=planned[rank].slot)
            if have != place:
                yield _fault(layout.PLAN, f"/placement/ranks/{rank}", str(place), str(have))
    for index, session in enumerate(sessions.ranks):
        if session.rank >= len(places):
            continue
        told = Place(node_ip=session.placement.planned_node_ip, slot=session.placement.planned_slot)
        seen = Place(node_ip=session.placement.observed_node_ip, slot=session.placement.observed_slot)
        where = f"/ranks/{index}/placement"
        if told != places[session.rank]:
            yield _fault(layout.RANK_SESSIONS, f"{where}/planned_node_ip", str(places[session.rank]), str(told))
        if seen != places[session.rank]:
            yield _fault(layout.RANK_SESSIONS, f"{where}/observed_node_ip", str(places[session.rank]), str(seen))
    yield from _accelerators(plan, sessions)
    nodes = len({place.node_ip for place in places})
    return f"{counted(len(places), 'rank')} on {counted(nodes, 'node')}, planned as observed"


def _accelerators(plan: Plan, sessions: RankSessions) -> Iterator[Finding]:
    """An accelerator of its own for each rank; outside the reference class there is one, in an image that is named."""
    taken: dict[tuple[str, str], int] = {}
    real = plan.deployment.hardware_class != "reference-cpu"
    if real and plan.deployment.image_digest is None:
        yield _fault(layout.PLAN, "/deployment/image_digest", "an image: a plan without one is for review", "null")
    for index, session in enumerate(sessions.ranks):
        where, seen = f"/ranks/{index}/placement/observed_accelerator", session.placement
        if seen.observed_accelerator == _NO_ACCELERATOR:
            if real:
                yield _fault(layout.RANK_SESSIONS, where, "an accelerator", seen.observed_accelerator)
            continue
        first = taken.setdefault((seen.observed_node_ip, seen.observed_accelerator), session.rank)
        if first != session.rank:
            actual = f"{seen.observed_accelerator}, as rank {first} on {seen.observed_node_ip}"
            yield _fault(layout.RANK_SESSIONS, where, f"one of its own for rank {session.rank}", actual)


def _bundles(plan: Plan) -> Iterator[Finding]:
    """Every bundle once, bound to a node, and holding the ranks of that node."""
    bundles = {bundle.index: bundle for bundle in plan.placement.bundles}
    if sorted(bundle.index for bundle in plan.placement.bundles) != list(range(len(plan.placement.bundles))):
        yield _fault(layout.PLAN, "/placement/bundles", "indices from 0 on, each once", "others")
    used = {rank.bundle for rank in plan.placement.ranks}
    for index, bundle in bundles.items():
        if index not in used:
            yield _fault(layout.PLAN, f"/placement/bundles/{index}", "a rank in each bundle", "none")
        wanted = [f"node:{bundle.node_ip}"]
        if plan.deployment.image_resource is not None:
            wanted.append(plan.deployment.image_resource)
        names = [resource.name for resource in bundle.resources]
        for name in wanted:
            if name not in names:
                pointer = f"/placement/bundles/{index}/resources"
                yield _fault(layout.PLAN, pointer, name, ", ".join(names) or "none")
    for number, rank in enumerate(plan.placement.ranks):
        home = bundles.get(rank.bundle)
        if home is None or home.node_ip != rank.node_ip:
            actual = "no such bundle" if home is None else home.node_ip
            yield _fault(layout.PLAN, f"/placement/ranks/{number}/bundle", rank.node_ip, actual)
    actors = [rank.actor for rank in plan.placement.ranks]
    if len(set(actors)) != len(actors):
        yield _fault(layout.PLAN, "/placement/ranks", "an actor name of its own for each rank", "a repeated name")


def _fault(file: str, pointer: str, expected: str, actual: str, id: str = "placement.mismatch") -> Finding:
    return found(id, file=file, pointer=pointer, expected=expected, actual=actual, stage="bind")
