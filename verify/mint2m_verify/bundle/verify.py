"""`mint2m verify bundle ARCHIVE`: a release archive from anyone, against what the auditor brought.

The order is the argument: the first members are read into memory, the anchor says whether their statement counts, and
only then is anything else looked at, held against that statement, and written, if it is to be written at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.anchor import (
    Anchor,
    ConsistencyOnly,
    DigestAnchor,
    Expectation,
    KeyAnchor,
    NoAnchor,
    VerifyOptions,
    check_expectations,
    check_outside_of,
)
from mint2m_verify.bundle.authority import Authority, judge
from mint2m_verify.bundle.checkout import check_checkout, read_checkout
from mint2m_verify.bundle.contents import check_contents, kept_bytes
from mint2m_verify.bundle.head import Head, Signed, check_layout, read_head, read_manifest
from mint2m_verify.bundle.members import MemberReader
from mint2m_verify.bundle.reader import ArchiveReader, open_archive
from mint2m_verify.bundle.unpacking import Unpacking
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, Trust, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.release import layout
from mint2m_verify.signing import key_id

_SIGNED = "signed by whom you trust"
_VERSION = "the version in the archive's name"
_LAYOUT = "the layout of a release"
_MEMBERS = "every member as signed, and no other"
_CONTENTS = "wheel, SBOM and provenance of this source"
_CHECKOUT = "the checkout is the release's source"
_OUTPUT = "written only as verified"

_NOT_CHECKED = (
    "what the source does, and whether its dependencies are sound",
    "that building the source gives this wheel: only that both hold the same files",
    "the wheel's own metadata (.dist-info), which people's installers read",
    "receipts inside: unpack them and use mint2m verify run",
    "whether a newer release exists, or this one was withdrawn later",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleQuestion:
    """An archive and what is wanted of it; each None asks for nothing."""

    archive: Path
    checkout: Path | None = None
    expect_version: str | None = None
    verified_output: Path | None = None


def verify_bundle(question: BundleQuestion, anchor: Anchor, options: VerifyOptions) -> Report:
    """The archive against the anchor; nothing is written but the verified output, and that only on acceptance.

    Raises:
        FindingError: for the caller's own input: `input.missing`, `file.exists`, `usage.invalid`.
    """
    if question.verified_output is not None and isinstance(anchor, ConsistencyOnly | NoAnchor):
        raise FindingError(found("usage.invalid", expected="--policy, --key or --digest with --verified-output"))
    log = Findings()
    state = _Verification(question=question, anchor=anchor, options=options, log=log)
    place = nullcontext() if question.verified_output is None else Unpacking(question.verified_output)
    with place as output:
        try:
            with open_archive(question.archive) as archive:
                state.archive(archive, output)
        except FindingError as fault:
            if fault.finding.id in ("input.missing", "usage.invalid"):
                raise
            log.add([fault.finding])
        state.fill()
        if output is not None and not log.findings:
            output.publish()
    return state.report()


class _Verification:
    """One verification as it proceeds; what was not reached is a row of its own."""

    def __init__(self, *, question: BundleQuestion, anchor: Anchor, options: VerifyOptions, log: Findings) -> None:
        self._question, self._anchor, self._options, self._log = question, anchor, options, log
        self._authority = Authority(findings=())
        self._signed: Signed | None = None
        self._wanted = [_SIGNED, _VERSION, _LAYOUT, _MEMBERS, _CONTENTS]
        self._wanted += [] if question.checkout is None else [_CHECKOUT]
        self._wanted += [] if question.verified_output is None else [_OUTPUT]

    def archive(self, archive: ArchiveReader, output: Unpacking | None) -> None:
        """Everything that is asked of the archive, until something makes the rest meaningless."""
        head = read_head(archive)
        self._authority = judge(head, self._anchor)
        self._judge(_SIGNED, _origin(self._authority), standing=self._standing())
        signed = self._manifest(head)
        if signed is None:
            return
        self._signed = signed
        self._judge(_VERSION, self._version(signed))
        if not self._judge(_LAYOUT, check_layout(signed)):
            return
        if output is not None:
            _write_head(output, head, self._authority)
        reader = MemberReader(archive, head, signed, keep=kept_bytes, output=output, progress=self._options.progress)
        if not self._judge(_MEMBERS, reader.check()):
            return
        self._judge(_CONTENTS, check_contents(signed, reader.kept, reader.blobs), standing=Standing.DERIVED)
        if self._question.checkout is not None:
            self._judge(_CHECKOUT, self._checkout(signed, self._question.checkout))
        if output is not None and not self._log.findings:
            self._judge(_OUTPUT, _output_words(self._question))

    def fill(self) -> None:
        """A row for each requirement that was not reached; without a finding that would be acceptance, so it is one."""
        for required in self._wanted:
            self._log.not_reached(required, (self._question.archive.name,))
        if self._wanted and not self._log.findings:
            self._log.add([found("verify.not-reached", actual=", ".join(self._wanted))])
        self._wanted.clear()

    def report(self) -> Report:
        anchored = self._signed is not None and not isinstance(self._anchor, NoAnchor)
        return Report(
            subject=str(self._question.archive),
            command="verify bundle",
            requirements=self._log.requirements,
            findings=self._log.findings,
            not_checked=(*_NOT_CHECKED, *self._authority.notes),
            trust=Trust(
                mode=self._authority.mode if anchored else "none",
                anchor=_anchor_words(self._anchor),
                signers=self._authority.signers if anchored else (),
                digests=tuple(self._digests()),
            ),
            evaluated_at=self._evaluated_at(),
            summary=self._summary(anchored=anchored),
        )

    def _judge(self, required: str, check: Check, *, standing: Standing = Standing.CHECKED) -> bool:
        self._wanted.remove(required)
        return self._log.judge(required, standing, check)

    def _standing(self) -> Standing:
        return Standing.UNVERIFIABLE if isinstance(self._anchor, ConsistencyOnly) else Standing.CHECKED

    def _manifest(self, head: Head) -> Signed | None:
        statement = self._authority.statement
        if statement is None:
            return None
        try:
            signed = Signed(statement=statement, manifest=read_manifest(head, statement))
        except FindingError as fault:
            self._log.add([fault.finding])
            return None
        inside = tuple(_inside(self._anchor, signed))
        self._log.add(inside)
        return None if inside else signed

    def _version(self, signed: Signed) -> Check:
        version, name = signed.statement.version, self._question.archive.name
        want = layout.archive_name(version)
        if name != want:
            yield found("bundle.name-mismatch", file=name, expected=want, actual=name)
        if self._question.expect_version is not None:
            wanted = Expectation(option="--expect-version", expected=self._question.expect_version, actual=version)
            yield from check_expectations((wanted,))
        return version

    def _checkout(self, signed: Signed, root: Path) -> Check:
        yield from check_outside_of(self._anchor, root)
        words = yield from check_checkout(signed, read_checkout(root, self._options.progress))
        return words

    def _digests(self) -> Iterator[NamedDigest]:
        match self._anchor:
            case KeyAnchor():
                yield NamedDigest(name="key", sha256=key_id(self._anchor.key))
            case PolicyAnchor():
                yield NamedDigest(name="policy", sha256=self._anchor.sha256)
                if self._anchor.root is not None:
                    yield NamedDigest(name="trusted-root", sha256=self._anchor.root.sha256)
        if self._signed is not None:
            yield NamedDigest(name="release", sha256=self._signed.statement.sha256)

    def _evaluated_at(self) -> str | None:
        return self._anchor.evaluated_at if isinstance(self._anchor, PolicyAnchor) else self._options.at

    def _summary(self, *, anchored: bool) -> str:
        if self._log.findings or self._signed is None:
            genuine = anchored and not isinstance(self._anchor, ConsistencyOnly)
            return "The signed statement itself is genuine: your anchor vouches for it." if genuine else ""
        version = self._signed.statement.version
        by = f", signed by {', '.join(map(_short, self._authority.signers))}" if self._authority.signers else ""
        return f"release {version}{by} ({self._authority.mode})"


def _origin(authority: Authority) -> Check:
    yield from authority.findings
    return authority.words


def _inside(anchor: Anchor, signed: Signed) -> Iterator[Finding]:
    """The auditor's key, policy or root is a member: whoever made the archive also chose it."""
    match anchor:
        case KeyAnchor():
            fault = "trust.key-inside-evidence"
        case PolicyAnchor():
            fault = "trust.policy-inside-evidence"
        case _:
            return
    brought = {file.sha256: file.path for file in anchor.files}
    for name, digest in signed.digests.items():
        if digest in brought:
            yield found(fault, file=name, actual=str(brought[digest]))


def _write_head(output: Unpacking, head: Head, authority: Authority) -> None:
    """The manifest, and the signatures that were verified."""
    with output.file(layout.MANIFEST, executable=False) as stream:
        stream.write(head.manifest)
    for signature in head.signatures:
        if signature.name in authority.judged:
            with output.file(signature.name, executable=False) as stream:
                stream.write(signature.raw)


def _output_words(question: BundleQuestion) -> Check:
    yield from ()
    return str(question.verified_output)


def _anchor_words(anchor: Anchor) -> str | None:
    match anchor:
        case KeyAnchor():
            return f"key {key_id(anchor.key)}"
        case DigestAnchor():
            return f"sha256 {anchor.sha256}"
        case PolicyAnchor():
            return f"policy {anchor.document.name}"
        case _:
            return None


def _short(signer: str) -> str:
    return f"{signer[:4]}…{signer[-4:]}" if len(signer) == 64 and set(signer) <= set("0123456789abcdef") else signer
