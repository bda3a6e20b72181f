"""The report as SARIF 2.1.0, for code-scanning services and editors.

The rule: a result is a cause or a consequence, told apart by level and order, so that the first result is what broke
first. Fingerprints are made of what does not change between two runs over the same fault (id, file, pointer), so that
a service recognizes it. Limits are those of GitHub's code scanning: what is past them is counted, not dropped unsaid.
Format: OASIS SARIF 2.1.0; limits: docs.github.com, "SARIF support for code scanning".
"""

from __future__ import annotations

import hashlib
import json
from urllib.parse import quote

from mint2m_verify import __version__
from mint2m_verify.canonical import JsonValue
from mint2m_verify.catalogue import entry
from mint2m_verify.finding import Finding, Report, Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.render.places import place, sentence

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

#: Results that GitHub shows of one run; of more it takes none beyond its own choice.
MOST_RESULTS = 5000

#: Characters that GitHub keeps of a message.
_MESSAGE = 1024

_LEVELS = {
    Verdict.FAILED: "error",
    Verdict.UNTRUSTED: "error",
    Verdict.INTERNAL: "error",
    Verdict.INCOMPLETE: "warning",
    Verdict.BLOCKED: "warning",
    Verdict.IO_ERROR: "warning",
}


def render_sarif(report: Report) -> str:
    """One SARIF run; ASCII only."""
    causes = report.roots
    ordered = [*causes, *(finding for finding in report.findings if finding.cause is not None)]
    told = ordered[:MOST_RESULTS]
    ids = sorted({finding.id for finding in told})
    document: JsonValue = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "mint2m",
                        "semanticVersion": __version__,
                        "rules": [_rule(id) for id in ids],
                    }
                },
                "automationDetails": {"id": f"mint2m/{report.command.replace(' ', '-')}/"},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        # The verification took place; what it concluded is the exit code.
                        "executionSuccessful": report.verdict not in (Verdict.INTERNAL, Verdict.IO_ERROR),
                        "exitCode": int(report.verdict),
                        "exitCodeDescription": report.verdict.word,
                    }
                ],
                "results": [_result(finding, report, ids) for finding in told],
                "properties": {
                    "subject": escape(report.subject),
                    "verdict": report.verdict.word,
                    "summary": escape(report.summary or report.verdict.word),
                    "trustMode": report.trust.mode,
                    "claimScope": report.claim_scope,
                    "requirements": [
                        {"required": escape(r.required), "found": escape(r.found), "standing": r.standing.value}
                        for r in report.requirements
                    ],
                    "notChecked": [escape(item) for item in report.not_checked],
                    "resultsNotShown": len(ordered) - len(told),
                },
            }
        ],
    }
    return json.dumps(document, ensure_ascii=True, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def _rule(id: str) -> JsonValue:
    known = entry(id)
    return {
        "id": id,
        "name": "".join(word.capitalize() for word in id.replace(".", "-").split("-")),
        "shortDescription": {"text": f"{known.message[0].upper()}{known.message[1:]}."},
        "fullDescription": {"text": known.explanation},
        "help": {"text": known.hint or known.explanation},
        "defaultConfiguration": {"level": _LEVELS[known.verdict]},
        "properties": {"exitCode": int(known.verdict)},
    }


def _result(finding: Finding, report: Report, ids: list[str]) -> JsonValue:
    location: dict[str, JsonValue] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(finding.file or report.subject)},
            # Evidence is bytes: a place in it is told by pointer or byte range, and services want some line.
            "region": {"startLine": 1},
        }
    }
    if finding.pointer is not None or finding.stage is not None:
        named = [escape(part) for part in (finding.stage, finding.pointer) if part is not None]
        location["logicalLocations"] = [{"fullyQualifiedName": " ".join(named), "kind": "member"}]
    where = place(finding)
    text = f"{where}: {sentence(finding)}" if where else sentence(finding)
    result: dict[str, JsonValue] = {
        "ruleId": finding.id,
        "ruleIndex": ids.index(finding.id),
        "level": _LEVELS[finding.verdict] if finding.cause is None else "note",
        "message": {"text": text[:_MESSAGE]},
        "locations": [location],
        "partialFingerprints": {"mint2mFinding/v1": _fingerprint(finding)},
    }
    properties: dict[str, JsonValue] = {}
    if finding.byte_range is not None:
        properties["byteRange"] = list(finding.byte_range)
    if finding.cause is not None:
        properties["followsFrom"] = finding.cause.id
    if properties:
        result["properties"] = properties
    return result


def _fingerprint(finding: Finding) -> str:
    parts = (finding.id, finding.file or "", finding.pointer or "", finding.stage or "")
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _uri(path: str) -> str:
    """A relative reference: every byte that could mean something else is percent-encoded."""
    return quote(path.encode("utf-8", "backslashreplace").lstrip(b"/") or b".", safe="/-._~")
