"""Attestations of other projects, offline, under a policy that names their workflow and the public-good root."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint2m.__main__ import run as command_line

PUBLISHER = "https://github.com/bazel-contrib/publish-to-bcr/.github/workflows/publish.yaml@refs/tags/v0.0.1"
PYPI = "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml@refs/tags/v0.0.19"
GITHUB = "https://token.actions.githubusercontent.com"
AT = "2026-07-01T00:00:00Z"


def policy(place: Path, san: str, *predicates: str) -> Path:
    known = json.loads((Path(__file__).resolve().parents[3] / "trust/known-roots.json").read_bytes())
    rules = [
        {
            "name": f"rule-{number}",
            "predicate_type": predicate,
            "kind": None,
            "stage": None,
            "signers": ["workflow"],
            "threshold": 1,
            "requires": [],
            "hardware_classes": None,
            "claim_scopes": None,
            "authorization_required": False,
            "minimum_version": None,
            "maximum_age_days": None,
        }
        for number, predicate in enumerate(predicates)
    ]
    made = {
        "schema": "mint2m.trust-policy/v1",
        "name": "realworld",
        "not_before": None,
        "not_after": "2027-01-01T00:00:00Z",
        "roots": [{"name": "public", "mode": "public-good", "sha256": known[0]["sha256"]}],
        "signers": [
            {
                "name": "workflow",
                "identity": {"san": san, "issuer": GITHUB, "claims": []},
                "key": None,
                "roots": ["public"],
                "needs": {"transparency": True, "timestamp": False},
            }
        ],
        "rules": rules,
        "assertions": [],
        "revoked": [],
    }
    path = place / "policy.json"
    path.write_text(json.dumps(made))
    return path


def verified(file: Path, bundles: list[Path], policy_path: Path) -> dict[str, Any]:
    words = ["verify", "signature", str(file), "--policy", str(policy_path), "--trusted-root", "public-good"]
    for bundle in bundles:
        words += ["--bundle", str(bundle)]
    report: dict[str, Any] = json.loads(command_line([*words, "--at", AT, "--format", "json"]).text)
    return report


def ids(report: dict[str, Any]) -> list[str]:
    return [fault["id"] for fault in report["findings"]]


def test_a_release_of_another_project_is_accepted_by_its_exact_workflow(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    place = shared("realworld")
    bundle = place / "MODULE.bazel.intoto.jsonl"
    predicate = predicate_of(bundle)
    report = verified(place / "MODULE.bazel", [bundle], policy(tmp_path, PUBLISHER, predicate))
    assert (ids(report), report["exit_code"]) == ([], 0)
    assert (report["trust"]["mode"], report["trust"]["signers"]) == ("public-good", ["workflow"])


@pytest.mark.parametrize("san", [PUBLISHER[:-1] + "2", PUBLISHER.replace("bazel-contrib", "bazel-contribs")])
def test_a_neighbour_of_that_workflow_is_a_stranger(shared: Callable[[str], Path], tmp_path: Path, san: str) -> None:
    place = shared("realworld")
    bundle = place / "MODULE.bazel.intoto.jsonl"
    report = verified(place / "MODULE.bazel", [bundle], policy(tmp_path, san, predicate_of(bundle)))
    assert (ids(report)[0], report["exit_code"]) == ("policy.signer-unknown", 4)


def test_another_signer_of_the_same_file_is_a_stranger(shared: Callable[[str], Path], tmp_path: Path) -> None:
    place = shared("realworld")
    bundle = place / "MODULE-wrong-signer.bazel.intoto.jsonl"
    report = verified(place / "MODULE.bazel", [bundle], policy(tmp_path, PUBLISHER, predicate_of(bundle)))
    assert (ids(report)[0], report["exit_code"]) == ("policy.signer-unknown", 4)


def test_each_attestation_needs_a_rule_of_its_own(shared: Callable[[str], Path], tmp_path: Path) -> None:
    place = shared("realworld")
    name = "pypi_attestations-0.0.19.tar.gz"
    bundles = [place / f"{name}.publish.attestation", place / f"{name}.slsa.attestation"]
    publish, provenance = "https://docs.pypi.org/attestations/publish/v1", "https://slsa.dev/provenance/v1"
    report = verified(place / name, bundles, policy(tmp_path, PYPI, publish, provenance))
    assert (ids(report), report["exit_code"]) == ([], 0)
    report = verified(place / name, bundles, policy(tmp_path, PYPI, publish))
    assert (ids(report), report["exit_code"]) == (["policy.no-rule"], 4)


def predicate_of(bundle: Path) -> str:
    envelope = json.loads(bundle.read_bytes().splitlines()[0])["dsseEnvelope"]
    return str(json.loads(base64.b64decode(envelope["payload"]))["predicateType"])
