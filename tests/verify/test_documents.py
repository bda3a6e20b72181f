"""A document's dataclass and its schema never drift apart, and reading is the inverse of writing."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pkgutil import iter_modules

import pytest

from mint2m_verify import documents, schema
from mint2m_verify.documents import Document, PhaseEvidence, Rollout
from mint2m_verify.documents.records import OwnershipEvent, chain_start
from mint2m_verify.finding import FindingError

MODULES = [importlib.import_module(f"{documents.__name__}.{info.name}") for info in iter_modules(documents.__path__)]

TYPES = [
    item
    for module in MODULES
    for item in vars(module).values()
    if isinstance(item, type)
    and issubclass(item, Document)
    and item.__module__ == module.__name__
    and hasattr(item, "NAME")
]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.NAME)
def test_a_dataclass_has_the_members_of_its_schema(kind: type[Document]) -> None:
    declared = json.loads(schema.schema_text(kind.NAME))["properties"]
    assert {member.name for member in dataclasses.fields(kind)} | {"schema"} == set(declared)


def test_every_document_type_but_the_report_has_a_dataclass() -> None:
    # The report is written, never read: `finding.Report.document` makes it.
    assert {kind.NAME for kind in TYPES} == set(schema.names()) - {"report"}


def test_phase_evidence_has_the_members_of_its_schema() -> None:
    sessions = json.loads(schema.schema_text("rank-sessions"))
    phase = sessions["properties"]["ranks"]["items"]["properties"]["phases"]["items"]
    declared = phase["properties"]["evidence"]
    assert {member.name for member in dataclasses.fields(PhaseEvidence)} == set(declared["properties"])
    assert declared["required"] == []


def _rollout() -> Rollout:
    return Rollout(
        prompt_tokens=(5, 6),
        responses=((1, 2), (3,)),
        rewards=(1.0, -0.5),
        old_logprobs=((-0.1, -0.2), (-0.3,)),
        ref_logprobs=None,
    )


def test_reading_gives_back_what_was_written() -> None:
    written = _rollout().encode()
    assert Rollout.parse(written, file="r") == _rollout()
    assert json.loads(written)["rewards"] == [1, -0.5]


def test_a_hand_written_document_may_have_any_spelling_only_where_allowed() -> None:
    spaced = json.dumps(json.loads(_rollout().encode()), indent=2).encode()
    assert Rollout.parse(spaced, file="r", canonical_form=False) == _rollout()
    with pytest.raises(FindingError) as caught:
        Rollout.parse(spaced, file="r")
    assert caught.value.finding.id == "json.not-canonical"


def test_absent_members_of_phase_evidence_are_left_out_and_null_resources_stay() -> None:
    assert documents.base.encode(PhaseEvidence(chunks=3)) == {"chunks": 3}
    event = OwnershipEvent(
        sequence=0,
        previous_sha256=None,
        time="2026-01-01T00:00:00Z",
        plan_sha256="1" * 64,
        execution_id="2" * 64,
        event="opened",
        resource=None,
        detail=None,
    )
    assert OwnershipEvent.parse(event.encode(), file="j") == event
    assert b'"resource":null' in event.encode()


def test_a_rank_chain_starts_at_its_own_execution_plan_and_rank() -> None:
    starts = {
        chain_start(execution_id=execution, plan_sha256=plan, rank=rank)
        for execution in ("a" * 64, "b" * 64)
        for plan in ("c" * 64, "d" * 64)
        for rank in (0, 1)
    }
    assert len(starts) == 8
