"""Whether what the auditor brought vouches for a training's statement, and in what words the report says so.

The rule: the statement and the runs are judged by one anchor. A key answers for what it signed; the digest of the
statement's payload for all that it names; a policy for who may sign a training, as it does for who may seal a run: by a
rule of its own, since whoever may run an update need not be the one who may say that many of them are a training.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mint2m_verify.anchor import CONSISTENT_MODE, Anchor, ConsistencyOnly, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.chain.vouching import Signed, Signers, check_signed
from mint2m_verify.claim_scopes import CLAIM_SCOPES
from mint2m_verify.documents.training import TrainingPlan
from mint2m_verify.finding import Finding, NamedDigest, Standing, Trust, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.roles import TRAINING, TRAINING_RUN
from mint2m_verify.signing import key_id
from mint2m_verify.training import places
from mint2m_verify.vouching import policy_notes

if TYPE_CHECKING:
    from mint2m_verify.policy.signers import Mode  # loaded where a training has a signer


@dataclass(slots=True)
class Origin:
    """What is known of the statement while the training is gone through; `payload` is the digest of its payload."""

    signers: Signers
    payload: str | None = None


def check_origin(signed: Signed, anchor: Anchor, origin: Origin) -> Generator[Finding, None, None]:
    """What `anchor` has against the statement's signature."""
    yield from check_signed(signed, anchor, TRAINING, origin.signers)
    if isinstance(anchor, DigestAnchor) and anchor.sha256 != origin.payload:
        yield found("trust.digest-mismatch", file=places.STATEMENT, expected=anchor.sha256, actual=origin.payload)


def judge_training(log: Findings, anchor: Anchor, origin: Origin, plan: TrainingPlan, *, runs: bool) -> None:
    """The rows that only a policy has: class and scope, and what must be there beside the statement.

    Args:
        runs: whether every step's run was accepted under the same policy.
    """
    if not isinstance(anchor, PolicyAnchor):
        return
    required = "the training's class and scope as the policy has them"
    if not origin.signers.accepted:
        log.not_reached(required, (places.STATEMENT,))
        return
    log.judge(required, Standing.ATTESTED_ONLY, _asserted(anchor, origin, plan))
    rule = origin.signers.accepted[0].rule
    if rule is not None and rule.requires:
        log.judge("what the policy requires beside the training", Standing.CHECKED, _beside(anchor, origin, runs=runs))


def _asserted(anchor: PolicyAnchor, origin: Origin, plan: TrainingPlan) -> Check:
    from mint2m_verify.policy import check_asserted

    # A training claims what its runs claim, and a class has one scope; that each run has it, the run's check says.
    scope = CLAIM_SCOPES[plan.hardware_class]
    yield from check_asserted(
        anchor,
        origin.signers.accepted[0],
        hardware_class=plan.hardware_class,
        claim_scope=scope,
        file=places.STATEMENT,
    )
    return f"{plan.hardware_class}, {scope}"


def _beside(anchor: PolicyAnchor, origin: Origin, *, runs: bool) -> Check:
    from mint2m_verify.policy import check_required

    accepted = origin.signers.accepted[0]
    present = ((TRAINING,) if accepted.met else ()) + ((TRAINING_RUN,) if runs else ())
    yield from check_required(anchor, accepted, present)
    return "all there"


def notes_of(anchor: Anchor, origin: Origin) -> tuple[str, ...]:
    """What the answer about the signer leaves open."""
    if isinstance(anchor, KeyAnchor):
        return ("whether the key was revoked after it was given to you",)
    if isinstance(anchor, DigestAnchor):
        return ("who signed the statement: the digest names its content, not its signer",)
    return tuple(dict.fromkeys(note for accepted in origin.signers.accepted for note in policy_notes(accepted)))


def trust_of(
    anchor: Anchor, origin: Origin, digests: Sequence[NamedDigest], *, anchored: bool, runs: Sequence[str]
) -> Trust:
    """How and by whom, for the report; nobody where the anchor is without force.

    Args:
        runs: how each run's seal is vouched for; the training is worth no more than the weakest of them.
    """
    match anchor:
        case PolicyAnchor():
            accepted = origin.signers.accepted[0] if origin.signers.accepted else None
            own = None if accepted is None else accepted.mode
            mode = "none" if own is None or not anchored else _weakest(own, runs)
            brought = [NamedDigest(name="policy", sha256=anchor.sha256)]
            if anchor.root is not None:
                brought.append(NamedDigest(name="trusted-root", sha256=anchor.root.sha256))
            return Trust(
                mode=mode,
                anchor=f"policy {anchor.document.name}",
                signers=accepted.signers if accepted is not None and anchored else (),
                digests=(*brought, *digests),
            )
        case KeyAnchor():
            mine = key_id(anchor.key)
            return Trust(
                mode=_weakest("managed-key", runs) if anchored else "none",
                anchor=f"key {mine}",
                signers=(mine,) if anchored else (),
                digests=(NamedDigest(name="key", sha256=mine), *digests),
            )
        case DigestAnchor():
            shown = f"sha256 {anchor.sha256}"
            return Trust(mode="digest" if anchored else "none", anchor=shown, digests=tuple(digests))
        case ConsistencyOnly():
            return Trust(mode=CONSISTENT_MODE, digests=tuple(digests))
        case NoAnchor():
            return Trust(digests=tuple(digests))


def _weakest(own: Mode, runs: Sequence[str]) -> Mode:
    from mint2m_verify.policy.signers import MODES, weakest

    # A run that nobody vouches for has a finding, and no mode.
    return weakest([own, *(mode for mode in MODES if mode in runs)])
