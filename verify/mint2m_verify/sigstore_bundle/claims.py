"""Names of what a Fulcio certificate says of its signer, and the object identifiers under which it says it.

Source: sigstore/fulcio, docs/oid-info.md. The names are the document's, in snake case. The deprecated extensions 2 to 6
hold bare text and repeat what newer ones say better; they can still be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

FULCIO_ARC = "1.3.6.1.4.1.57264.1"

#: Extensions whose value is bare UTF-8 text.
BARE_CLAIMS: Mapping[str, int] = {
    "github_workflow_trigger": 2,
    "github_workflow_sha": 3,
    "github_workflow_name": 4,
    "github_workflow_repository": 5,
    "github_workflow_ref": 6,
}

#: Extensions whose value is a DER UTF8String.
DER_CLAIMS: Mapping[str, int] = {
    "build_signer_uri": 9,
    "build_signer_digest": 10,
    "runner_environment": 11,
    "source_repository_uri": 12,
    "source_repository_digest": 13,
    "source_repository_ref": 14,
    "source_repository_identifier": 15,
    "source_repository_owner_uri": 16,
    "source_repository_owner_identifier": 17,
    "build_config_uri": 18,
    "build_config_digest": 19,
    "build_trigger": 20,
    "run_invocation_uri": 21,
    "source_repository_visibility": 22,
}

#: Every name that a policy may ask for.
CLAIM_NAMES = frozenset({*BARE_CLAIMS, *DER_CLAIMS})
