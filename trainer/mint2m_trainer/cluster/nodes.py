"""The cluster's nodes against the plan's, and the plan's bundles as Ray wants them.

The rule: each deployment IP has exactly one live Ray record, with everything the plan puts there, before anything is
created. Two records for one IP, or an image resource that is missing, would let ranks run where nobody planned. A node
advertises exactly the accelerators that the deployment gives it: one more or less is a slip of the inventory. In the
reference class accelerators are logical, so a node may also advertise none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mint2m_verify.documents.plan import Bundle, Plan
from mint2m_verify.finding import Finding, found

#: Ray's name for an accelerator.
_ACCELERATOR = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A live Ray node: its address and what it offers."""

    ip: str
    resources: Mapping[str, float]


def live_nodes(records: Sequence[Mapping[str, Any]]) -> tuple[NodeRecord, ...]:
    """Ray's own records (`ray.nodes()`), without the dead ones."""
    return tuple(
        NodeRecord(ip=str(record["NodeManagerAddress"]), resources=dict(record["Resources"]))
        for record in records
        if record["Alive"]
    )


def check_nodes(plan: Plan, nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    """Where the cluster is not the deployment's; unrelated nodes may be there and are not used."""
    wanted = {ip: _wanted(plan, ip) for ip in plan.deployment.node_ips}
    for ip, resources in wanted.items():
        records = [node for node in nodes if node.ip == ip]
        if len(records) != 1:
            yield found("ray.node-mismatch", pointer=ip, expected="one live node", actual=f"{len(records)}")
            continue
        for name, amount in sorted(resources.items()):
            have = records[0].resources.get(name, 0.0)
            if name != _ACCELERATOR and have < amount:
                yield found("ray.node-mismatch", pointer=ip, expected=f"at least {amount:g} {name}", actual=f"{have:g}")
        each, have = plan.deployment.accelerators_per_node, records[0].resources.get(_ACCELERATOR, 0.0)
        if have != each and not (have == 0 and plan.deployment.hardware_class == "reference-cpu"):
            yield found("ray.node-mismatch", pointer=ip, expected=f"exactly {each} {_ACCELERATOR}", actual=f"{have:g}")


def _wanted(plan: Plan, ip: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for bundle in plan.placement.bundles:
        if bundle.node_ip == ip:
            for name, amount in bundle_resources(bundle).items():
                total[name] += amount  # type: ignore[assignment]  # counts of resources may be fractions
    return total


def bundle_resources(bundle: Bundle) -> dict[str, float]:
    """A bundle in Ray's words."""
    resources = {"CPU": float(bundle.cpus)}
    if bundle.accelerators:
        resources[_ACCELERATOR] = float(bundle.accelerators)
    return resources | {item.name: item.amount for item in bundle.resources}
