"""A look into a cluster that the run did not start, by namespace, name and Ray's own id: cleanup's, and `status`'s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group_table

from mint2m_trainer.cluster.messages import Progress, Whereabouts
from mint2m_trainer.cluster.ray_session import connect, ray_silenced
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import OwnedResource
from mint2m_verify.finding import FindingError, found

#: Seconds in which the coordinator must answer.
_ANSWER_S = 10.0


@contextmanager
def joined(address: str, namespace: str) -> Iterator[None]:
    """Connected to the cluster; raises `FindingError` (`cleanup.cluster-unreachable`)."""
    with ray_silenced():
        yield from _connected(address, namespace)


def _connected(address: str, namespace: str) -> Iterator[None]:
    try:
        connect(address, namespace)
    except FindingError as fault:
        raise FindingError(
            found("cleanup.cluster-unreachable", expected=address, actual=fault.finding.actual)
        ) from fault
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What of a run its cluster shows: resources that are there, and the ranks' latest words, by rank."""

    there: tuple[OwnedResource, ...]
    progress: tuple[Progress, ...]
    whereabouts: tuple[Whereabouts, ...]


def seen(plan: Plan, owned: Sequence[OwnedResource]) -> Seen:
    """Of `owned`, what is there now; raises `FindingError` (`cleanup.cluster-unreachable`)."""
    with joined(plan.deployment.ray_address, plan.namespace):
        there = tuple(
            item
            for item in owned
            if item.kind in ("actor", "placement-group") and not absent_in_cluster(item, plan.namespace)
        )
        try:
            coordinator = ray.get_actor(plan.placement.coordinator, namespace=plan.namespace)
            asked = [coordinator.progress.remote(), coordinator.whereabouts.remote()]
            progress, whereabouts = ray.get(asked, timeout=_ANSWER_S)
        except (ValueError, RayError, GetTimeoutError):  # no coordinator any more, or one that cannot answer
            progress, whereabouts = (), ()
        return Seen(there=there, progress=progress, whereabouts=whereabouts)


def absent_in_cluster(item: OwnedResource, namespace: str) -> bool:
    """Whether the cluster knows nothing alive under this resource's id, or name where it has no id."""
    if item.kind == "actor":
        try:
            actor = ray.get_actor(item.name, namespace=namespace)
        except ValueError:
            return True
        return item.id is not None and actor._actor_id.hex() != item.id
    groups = placement_group_table()
    if item.id is not None:
        return groups.get(item.id, {}).get("state", "REMOVED") == "REMOVED"
    return not any(group["name"] == item.name and group["state"] != "REMOVED" for group in groups.values())


def remove_by_id(item: OwnedResource, namespace: str) -> None:
    """Remove an actor or a group that carries exactly the journalled id; anything else is left alone."""
    if item.kind == "actor":
        try:
            actor = ray.get_actor(item.name, namespace=namespace)
        except ValueError:
            return
        if actor._actor_id.hex() == item.id:
            ray.kill(actor, no_restart=True)
        return
    from ray._raylet import PlacementGroupID

    if item.id is not None and not absent_in_cluster(item, namespace):
        ray._private.worker.global_worker.core_worker.remove_placement_group(PlacementGroupID(bytes.fromhex(item.id)))
