"""The ownership journal as evidence: one unbroken chain, of this execution, in which everything owned is absent.

The rule: what was ever intended must be found absent before the journal closes. An intent counts like a creation,
because a driver that dies between the two may have created the thing without writing so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mint2m_verify import layout
from mint2m_verify.documents import Plan
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check
from mint2m_verify.run_documents import JournalLine

_FILE = layout.OWNERSHIP


def check_journal(
    lines: Sequence[JournalLine], *, plan: Plan, execution_id: str, actor_ids: Mapping[str, str]
) -> Check:
    """The chain, the execution it belongs to, that all planned was created, and that nothing owned remains.

    Args:
        lines: the journal.
        plan: names the group and the actors that a run creates.
        execution_id: of the run.
        actor_ids: the id that each rank's actor, by name, recorded for itself.
    """
    yield from _chain(lines, plan_sha256=plan.plan_sha256, execution_id=execution_id)
    yield from _planned(lines, plan, actor_ids)
    owned: dict[tuple[str, str], str] = {}
    ever: set[tuple[str, str]] = set()
    for number, line in enumerate(lines):
        event = line.event
        if event.event == "cleanup-failed":
            yield _fault("journal.cleanup-failed", number, None, event.detail)
        if event.resource is None or event.event in ("opened", "closed", "cleanup-failed"):
            continue
        key = (event.resource.kind, event.resource.name)
        shown = f"{event.resource.kind} {event.resource.name}"
        match event.event:
            case "intent":
                owned[key] = shown
                ever.add(key)
            case "created":
                if key not in owned:
                    yield _fault("journal.without-intent", number, f"an intent for {shown} before", "none")
                owned[key] = shown
                ever.add(key)
            case "released":
                if key not in ever:
                    yield _fault("journal.without-intent", number, f"an intent for {shown} before", "none")
            case "absent":
                owned.pop(key, None)
    if not ever:
        yield _fault("journal.nothing-owned", len(lines) - 1, "at least one resource", "none")
    for shown in owned.values():
        yield _fault("journal.not-absent", len(lines) - 1, f"{shown} absent", "no such event")
    actors = sum(kind == "actor" for kind, _ in ever)
    return f"{len(lines)} events; {len(ever)} resources ({actors} actors) created and absent again"


def _planned(lines: Sequence[JournalLine], plan: Plan, actor_ids: Mapping[str, str]) -> Iterator[Finding]:
    created = {
        (line.event.resource.kind, line.event.resource.name): line.event.resource.id
        for line in lines
        if line.event.event == "created" and line.event.resource is not None
    }
    place = plan.placement
    wanted = [("placement-group", place.group), ("actor", place.coordinator)]
    wanted += [("actor", rank.actor) for rank in place.ranks]
    for kind, name in wanted:
        if (kind, name) not in created:
            yield _fault("journal.not-created", len(lines) - 1, f"{kind} {name}, as planned", "never created")
    for name, actor_id in actor_ids.items():
        have = created.get(("actor", name))
        if ("actor", name) in created and have != actor_id:
            yield _fault("journal.actor-mismatch", len(lines) - 1, f"{name} with id {actor_id}", str(have))


def _chain(lines: Sequence[JournalLine], *, plan_sha256: str, execution_id: str) -> Iterator[Finding]:
    if not lines:
        yield _fault("journal.nothing-owned", 0, "at least one event", "none")
        return
    previous: str | None = None
    for number, line in enumerate(lines):
        event = line.event
        if event.sequence != number:
            yield _fault("journal.sequence", number, str(number), str(event.sequence))
        if event.previous_sha256 != previous:
            yield _fault("journal.chain-broken", number, previous or "null", event.previous_sha256 or "null")
        previous = line.sha256
    strangers = ((n, line.event) for n, line in enumerate(lines))
    ours = (plan_sha256, execution_id)
    stranger = next(((n, e) for n, e in strangers if (e.plan_sha256, e.execution_id) != ours), None)
    if stranger is not None:
        number, event = stranger
        actual = f"plan {event.plan_sha256}, execution {event.execution_id}"
        yield _fault("journal.other-run", number, f"plan {plan_sha256}, execution {execution_id}", actual)
    if lines[0].event.event != "opened":
        yield _fault("journal.not-opened", 0, "opened", lines[0].event.event)
    if lines[-1].event.event != "closed":
        yield _fault("journal.not-closed", len(lines) - 1, "closed", lines[-1].event.event)
    for number, line in enumerate(lines[:-1]):
        if line.event.event == "closed" or (number and line.event.event == "opened"):
            yield _fault("journal.not-closed", number, "one opening and one closing", line.event.event)


def _fault(id: str, number: int, expected: str | None, actual: str | None) -> Finding:
    pointer = f"line {number + 1}"
    return found(id, file=_FILE, pointer=pointer, expected=expected, actual=actual, stage="cleanup")
