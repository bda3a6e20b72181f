"""Schemas are valid, bundled, closed, and never reach for a network."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from mint2m_verify import schema
from mint2m_verify.canonical import JsonValue
from mint2m_verify.finding import FindingError

ALL = (*schema.names(), "common")


@pytest.mark.parametrize("name", ALL)
def test_every_schema_is_valid_and_has_an_absolute_id(name: str) -> None:
    document = json.loads(schema.schema_text(name))
    Draft202012Validator.check_schema(document)
    assert document["$id"] == f"urn:mint2m:schema:{name}:v1"


def _objects(node: object) -> list[dict[str, object]]:
    if isinstance(node, dict):
        here = [node] if node.get("type") == "object" else []
        return here + [found for value in node.values() for found in _objects(value)]
    if isinstance(node, list):
        return [found for value in node for found in _objects(value)]
    return []


@pytest.mark.parametrize("name", ALL)
def test_no_object_accepts_a_member_it_does_not_name(name: str) -> None:
    objects = _objects(json.loads(schema.schema_text(name)))
    assert all(node.get("additionalProperties") is False for node in objects)
    assert objects


@pytest.mark.parametrize("name", ALL)
def test_every_reference_is_bundled(name: str) -> None:
    text = schema.schema_text(name)
    ids = {json.loads(schema.schema_text(other))["$id"] for other in ALL}
    references = {part.split('"')[0].split("#")[0] for part in text.split('"$ref": "')[1:]}
    assert references <= ids


def _rollout(**changes: JsonValue) -> JsonValue:
    base: dict[str, JsonValue] = {
        "schema": "mint2m.rollout/v1",
        "prompt_tokens": [1, 2],
        "responses": [[1], [2]],
        "rewards": [1, -1],
        "old_logprobs": None,
        "ref_logprobs": None,
    }
    return {**base, **changes}


def test_a_valid_document_has_no_finding() -> None:
    assert schema.check(_rollout(), "rollout", file="r") == ()


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"passed": True}, ""),
        ({"prompt_tokens": [1, -1]}, "/prompt_tokens/1"),
        ({"prompt_tokens": [1, True]}, "/prompt_tokens/1"),
        ({"prompt_tokens": [1, 2.5]}, "/prompt_tokens/1"),
        ({"prompt_tokens": [1, "2"]}, "/prompt_tokens/1"),
        ({"responses": []}, "/responses"),
        ({"responses": [[1], []]}, "/responses/1"),
    ],
)
def test_a_fault_is_found_where_it_lies(changes: dict[str, JsonValue], pointer: str) -> None:
    # The quick way for number lists must refuse exactly what the standard validator refuses.
    found = schema.check(_rollout(**changes), "rollout", file="r")
    assert [(f.id, f.pointer) for f in found] == [("schema.invalid", pointer)]


def test_a_placeholder_digest_is_named_as_one() -> None:
    value = {"schema": "mint2m.training-fixture/v1", "policy_sha256": "0" * 64}
    assert "schema.placeholder" in {f.id for f in schema.check(value, "training-fixture", file="f")}


@pytest.mark.parametrize("declared", [None, "mint2m.rollout/v2", "mint2m.plan/v1", 7])
def test_another_type_or_major_version_is_refused_first(declared: JsonValue) -> None:
    assert [f.id for f in schema.check(_rollout(schema=declared), "rollout", file="r")] == ["schema.unknown"]


@pytest.mark.parametrize("path", ["../a", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", "a\nb", "", "a/.."])
def test_unsafe_paths_are_no_paths(path: str) -> None:
    entry = {"path": path, "size": 0, "executable": False, "sha256": "1" * 64, "chunks": []}
    manifest: JsonValue = {
        "schema": "mint2m.file-manifest/v1",
        "tree": "t",
        "chunk_bytes": 67108864,
        "file_count": 1,
        "total_bytes": 0,
        "files": [entry],
        "root_sha256": "1" * 64,
    }
    assert "/files/0/path" in {f.pointer for f in schema.check(manifest, "file-manifest", file="m")}


def test_an_unknown_schema_name_is_a_finding() -> None:
    with pytest.raises(FindingError) as caught:
        schema.schema_text("../plan")
    assert caught.value.finding.id == "schema.unknown"


def test_schemas_name_no_format_that_is_not_asserted() -> None:
    texts = [schema.schema_text(name) for name in ALL]
    assert {name for text in texts for name in re.findall(r'"format": *"([^"]*)"', text)} == {
        "date-time",
        "ipv4",
        "ipv6",
    }


@pytest.mark.parametrize(
    "time",
    [
        "2026-02-30T00:00:00Z",  # no such day
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:59:60Z",  # a leap second
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00z",
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00Z",
        "\u0662026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
    ],
)
def test_a_time_in_another_form_or_of_no_calendar_is_refused(time: str) -> None:
    document = {"schema": "mint2m.report/v1", "evaluated_at": time}
    pointers = {fault.pointer for fault in schema.check(document, "report", file="f")}
    assert "/evaluated_at" in pointers
    assert "/evaluated_at" not in {
        fault.pointer
        for fault in schema.check(document | {"evaluated_at": "2024-02-29T23:59:59.125Z"}, "report", file="f")
    }
