"""The client that sigstore-conformance drives: `python -m mint2m_verify.conformance verify-bundle …`.

The rule: the suite asks one question and reads one bit, so this answers 0 or 1 and nothing in between; the reasons go
to stderr for whoever reads the suite's output. Where the protocol names no root it means the public-good one, or the
staging one, and only here is that assumed. It verifies as `mint2m verify signature` does, by digest: the suite renames
its artifacts. Protocol: sigstore-conformance, docs/cli_protocol.md; signing is not offered.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.named_input import read_named
from mint2m_verify.render.escape import escape
from mint2m_verify.signing import load_public_key
from mint2m_verify.sigstore_bundle import (
    Artifact,
    CertificateSigner,
    check_identity,
    load_root,
    packaged_root,
    read_bundle,
    verify_bundle,
)
from mint2m_verify.sigstore_bundle.artifact import read_artifact
from mint2m_verify.sigstore_bundle.reading import BUNDLE_LIMIT

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def main(words: Sequence[str]) -> int:
    """The suite's exit code: 0 where the bundle verifies, 1 for everything else."""
    try:
        asked = _parser().parse_args(words)
    except SystemExit as end:  # argparse leaves by itself, with 0 after --help
        return 0 if end.code == 0 else 1
    try:
        findings = list(check(asked))
    except FindingError as fault:
        findings = [fault.finding]
    for finding in findings:
        told = f"{finding.id}: {finding.message}; expected {finding.expected}, found {finding.actual}"
        sys.stderr.write(f"{escape(told)}\n")
    return 1 if findings else 0


def check(asked: argparse.Namespace) -> Iterator[Finding]:
    """What stands against the bundle; raises `FindingError` for what cannot be read."""
    file = str(asked.bundle)
    if asked.trusted_root is not None:
        root = load_root(asked.trusted_root)
    else:
        root = packaged_root("staging" if asked.staging else "public-good")
    keys = () if asked.key is None else (load_public_key(asked.key),)
    bundle = read_bundle(read_named(asked.bundle, limit=BUNDLE_LIMIT), file=file)
    if keys and bundle.material == "certificate":
        yield found("signature.not-by-key", file=file)
        return
    result = verify_bundle(bundle, root=root, keys=keys, artifact=_artifact(asked.artifact))
    yield from result.findings
    if result.verified is not None and isinstance(result.verified.signer, CertificateSigner):
        yield from check_identity(
            result.verified.signer,
            identity=asked.certificate_identity or "",
            issuer=asked.certificate_oidc_issuer or "",
            file=file,
        )


def _artifact(text: str) -> Artifact:
    """By the protocol: a digest only where it has the form of one and no file is called so."""
    digest = _DIGEST.fullmatch(text)
    if digest is not None and not Path(text).exists():
        return Artifact(name=None, sha256=digest[1])
    read = read_artifact(Path(text))
    return Artifact(name=None, sha256=read.sha256, content=read.content)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mint2m_verify.conformance")
    verify = parser.add_subparsers(required=True).add_parser("verify-bundle")
    verify.add_argument("--staging", action="store_true")
    verify.add_argument("--bundle", type=Path, required=True)
    verify.add_argument("--certificate-identity")
    verify.add_argument("--certificate-oidc-issuer")
    verify.add_argument("--key", type=Path)
    verify.add_argument("--trusted-root", type=Path)
    verify.add_argument("artifact")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
