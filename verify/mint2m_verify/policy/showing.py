"""`mint2m trust show`: a policy in words, or everything that is wrong with it; and the packaged root, to be kept.

The rule: words are given only for a policy that a verification would take. One with faults is told fault by fault,
all of them, since whoever mends it wants to run this once.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_verify.finding import NamedDigest, Report, Requirement, Standing, Trust
from mint2m_verify.policy.reading import PUBLIC_GOOD, read_for_showing
from mint2m_verify.policy.words import policy_text
from mint2m_verify.sigstore_bundle import packaged_root


def root_text(name: str) -> str | None:
    """The root that sigstore ships, as its file has it, where `name` asks for that; a file of this name is a policy."""
    if name != PUBLIC_GOOD or Path(name).exists():
        return None
    return packaged_root(PUBLIC_GOOD).raw.decode("utf-8")


def show_policy(path: Path) -> tuple[Report, str | None]:
    """A report on the policy in `path`, and its words where it is sound.

    Raises:
        FindingError: the file cannot be opened.
    """
    document, faults, sha256 = read_for_showing(path)
    sound = document is not None and not faults
    row = Requirement(
        required="the policy says something, and one thing",
        found="sound" if sound else f"{len(faults)} faults",
        standing=Standing.CHECKED if sound else Standing.FAILED,
    )
    report = Report(
        subject=str(path),
        command="trust show",
        requirements=(row,),
        findings=faults,
        not_checked=("whether it has expired, and whether its keys are whose it says",),
        trust=Trust(digests=(NamedDigest(name="policy", sha256=sha256),)),
    )
    return report, policy_text(document, sha256) if sound and document is not None else None
