"""What a stage owned in Ray: its journal must end with everything absent.

The rule: an intent is on disk before anything is made, so a journal that names nothing, or whose last line is not
`closed`, leaves something unanswered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mint2m_verify.chain.bundle import Bundle
from mint2m_verify.finding import Finding, found
from mint2m_verify.run_documents import JournalLine, read_journal
from mint2m_verify.walk import ReadFile

JOURNAL = "ownership.jsonl"


def check_journal(bundle: Bundle, files: Mapping[str, ReadFile], plan_sha256: str) -> Iterator[Finding]:
    """Where the stage's journal is broken, of another execution, or leaves something owned."""
    path = f"{bundle.places.tree}{JOURNAL}"
    file = files.get(path)
    if file is None or file.raw is None:
        yield found("chain.artifact-missing", stage=bundle.stage, file=path)
        return
    lines, faults = read_journal(file.raw, file=path)
    yield from faults
    if faults or bundle.record is None:
        return
    yield from _chained(bundle, lines, path, plan_sha256)
    owned = _owned(lines)
    if not any(line.event.event == "created" and line.event.resource is not None for line in lines):
        yield _fault("journal.nothing-owned", bundle, path, "at least one actor", "none")
    for name in owned:
        yield _fault("journal.not-absent", bundle, path, "absent", name)
    ids = {
        line.event.resource.name: line.event.resource.id
        for line in lines
        if line.event.resource is not None and line.event.resource.id
    }
    for rank in () if bundle.ranks is None else bundle.ranks.ranks:
        if rank.actor is not None and ids.get(rank.actor) != rank.actor_id:
            yield _fault("journal.actor-mismatch", bundle, path, str(rank.actor_id), str(ids.get(rank.actor)))
    if lines[-1].event.event != "closed":
        yield _fault("journal.not-closed", bundle, path, "closed", lines[-1].event.event)


def _chained(bundle: Bundle, lines: tuple[JournalLine, ...], path: str, plan_sha256: str) -> Iterator[Finding]:
    previous: str | None = None
    execution = None if bundle.record is None else bundle.record.execution_id
    for number, line in enumerate(lines):
        event = line.event
        want = (str(number), str(previous), plan_sha256, str(execution))
        have = (str(event.sequence), str(event.previous_sha256), event.plan_sha256, event.execution_id)
        if want != have:
            expected, actual = next((w, h) for w, h in zip(want, have, strict=True) if w != h)
            yield found(
                "chain.execution-mismatch",
                stage=bundle.stage,
                file=path,
                pointer=f"line {number + 1}",
                expected=expected,
                actual=actual,
            )
            return  # lines after the first wrong one say nothing new
        previous = line.sha256


def _owned(lines: tuple[JournalLine, ...]) -> tuple[str, ...]:
    open_: dict[str, str] = {}
    for line in lines:
        about = line.event.resource
        if about is None:
            continue
        name = f"{about.kind} {about.name}"
        if line.event.event == "absent":
            open_.pop(name, None)
        elif line.event.event in ("intent", "created"):
            open_[name] = name
    return tuple(open_)


def _fault(id: str, bundle: Bundle, path: str, expected: str, actual: str) -> Finding:
    return found(id, stage=bundle.stage, file=path, expected=expected, actual=actual)
