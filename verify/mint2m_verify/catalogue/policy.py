"""Findings about a trust policy itself, and about evidence under one."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_MEND = "mint2m trust show FILE names every fault of a policy"

ENTRIES = (
    # The policy itself: the caller's input.
    Entry(
        id="policy.malformed",
        verdict=Verdict.BLOCKED,
        message="the policy cannot be read",
        explanation=(
            "The file given as --policy is not one strict JSON document: it is cut, has a member twice, is no UTF-8, or is too long.\n"
            "Two readers could take it for two policies, so nothing was judged by it. `mint2m trust init` writes a template."
        ),
    ),
    Entry(
        id="policy.invalid",
        verdict=Verdict.BLOCKED,
        message="the policy does not keep to its format",
        explanation=(
            "A member is missing, unknown or of another form than mint2m.trust-policy/v1 has it (`mint2m schema show trust-policy`).\n"
            "A member that nobody knows could be a demand that nobody checks, so the whole policy is refused."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.placeholder",
        verdict=Verdict.BLOCKED,
        message="the policy still holds a placeholder",
        explanation=(
            "`mint2m trust init` writes a template whose <places> are to be filled in. One of them is left, or a digest is all zeros.\n"
            "A policy with a gap demands something that nobody meant. Fill it in, or take the entry out."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.empty",
        verdict=Verdict.BLOCKED,
        message="the policy names nobody where it must name somebody",
        explanation=(
            "A policy without rules, a rule without signers, an assertion without signers, or an identity or need without a root\n"
            "demands nothing or can hold for nobody. An empty set proves nothing."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.vacuous",
        verdict=Verdict.BLOCKED,
        message="the policy makes a demand that is none",
        explanation=(
            "A threshold of zero, a rule that requires itself or an assertion of nothing holds for any evidence. Whoever wrote it\n"
            "meant something else."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.too-wide",
        verdict=Verdict.BLOCKED,
        message="the pattern names nobody in particular",
        explanation=(
            "A star matches whatever follows, so before it must stand everything that makes the rest one owner's: scheme, host and\n"
            "the owner's whole segment of the path with its slash, as in https://github.com/acme/*. A bare *, https://github.com/*\n"
            "and https://github.com/acme* all match strangers, and so does any star in a mail address."
        ),
        hint="write the name out, or end the pattern behind the owner's slash",
    ),
    Entry(
        id="policy.duplicate",
        verdict=Verdict.BLOCKED,
        message="the policy says the same thing twice",
        explanation=(
            "Two entries have one name, one key, one identity, one root, or are about one role. Two names for one key would count\n"
            "once whatever they are called, and of two rules for one role only one could be meant."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.unknown-name",
        verdict=Verdict.BLOCKED,
        message="the policy refers to a name that it does not define",
        explanation="A rule or a signer names a signer, rule or root that is not in the policy: a misspelling, or an entry that was taken out.",
        hint=_MEND,
    ),
    Entry(
        id="policy.unused",
        verdict=Verdict.BLOCKED,
        message="the policy defines something that nothing uses",
        explanation=(
            "A signer that no rule lets sign, a root under which nobody counts, an assertion by somebody who signs no seal: it has no\n"
            "effect, and whoever wrote it expected one. A key that is marked revoked may stay, so that its signatures are named."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.contradictory",
        verdict=Verdict.BLOCKED,
        message="the policy contradicts itself",
        explanation=(
            "It ends before it begins, gives one root two modes, lets a revoked key sign, trusts a root that it revokes, or describes a\n"
            "signer as both key and identity, or neither. Which of the two was meant cannot be guessed."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.unsatisfiable",
        verdict=Verdict.BLOCKED,
        message="no evidence can meet this rule",
        explanation=(
            "The rule asks for more distinct signers than it names, for a class or scope that none of its signers may assert or that do\n"
            "not go together, or for something that statements of its type never say. It would refuse everything, for ever."
        ),
        hint=_MEND,
    ),
    Entry(
        id="policy.key-invalid",
        verdict=Verdict.BLOCKED,
        message="the policy's key is not the key that it says",
        explanation=(
            "The PEM holds no public key, a key of a kind that is not accepted (P-256 and Ed25519 are), or another key than the digest\n"
            "beside it names. `mint2m keys show FILE` prints a key's digest."
        ),
    ),
    Entry(
        id="policy.expired",
        verdict=Verdict.UNTRUSTED,
        message="the policy has expired",
        explanation=(
            "Its `not_after` lies before the evaluation time (--at, or now). An old policy may name keys that were revoked since.\n"
            "Get the current one from whoever keeps it; --at a past time asks what was true then."
        ),
    ),
    Entry(
        id="policy.not-yet-valid",
        verdict=Verdict.UNTRUSTED,
        message="the policy is not valid yet",
        explanation="Its `not_before` lies after the evaluation time (--at, or now). Check the clock, or the time that you gave.",
    ),
    Entry(
        id="policy.root-not-named",
        verdict=Verdict.UNTRUSTED,
        message="the policy does not name this trusted root",
        explanation=(
            "The SHA-256 of the file given as --trusted-root is not among the policy's roots. A root can vouch for any identity, so only\n"
            "one that the policy names counts. If the root was renewed, the policy's keeper has to name the new one.\n"
            "`mint2m trust show public-good` writes the root that this tool's sigstore ships."
        ),
    ),
    # Evidence under a policy.
    Entry(
        id="policy.no-rule",
        verdict=Verdict.UNTRUSTED,
        message="the policy has no rule for what this statement is",
        explanation=(
            "Signers are looked up by predicate type, kind and stage, exactly. The policy lets nobody sign statements of this role, so\n"
            "nobody's signature on one counts. Rules for other roles are not taken instead."
        ),
    ),
    Entry(
        id="policy.signer-unknown",
        verdict=Verdict.UNTRUSTED,
        message="the policy does not know this signer",
        explanation=(
            "The bundle is by a key that the policy does not list, or by an identity that none of its signers match. It may be genuine\n"
            "and somebody else's, or forged throughout: from here the two look the same. If the operator changed signers, get the new\n"
            "policy from its keeper, never out of the evidence."
        ),
    ),
    Entry(
        id="policy.signer-not-allowed",
        verdict=Verdict.UNTRUSTED,
        message="the policy does not let this signer sign this",
        explanation=(
            "The signature is good and the signer is known, but may sign other things. A key that is trusted with releases says nothing\n"
            "about runs."
        ),
    ),
    Entry(
        id="policy.claim-mismatch",
        verdict=Verdict.UNTRUSTED,
        message="the certificate is of another repository, commit or workflow",
        explanation=(
            "Identity and issuer match a signer of the policy, but a claim in the certificate is absent or differs from what the policy\n"
            "demands: the right workflow ran on another source. Compare the expected with the found value."
        ),
    ),
    Entry(
        id="policy.root-not-for-signer",
        verdict=Verdict.UNTRUSTED,
        message="the signer does not count under this root",
        explanation=(
            "The policy trusts this signer under another root than the one that vouched. Whoever holds a private root can issue any\n"
            "identity, so each signer counts only under the roots that the policy gives it."
        ),
    ),
    Entry(
        id="policy.threshold-not-met",
        verdict=Verdict.UNTRUSTED,
        message="too few distinct signers",
        explanation=(
            "The rule asks for a number of distinct keys or (issuer, SAN) pairs, and fewer signatures count. Two signatures by one key,\n"
            "or two certificates for one identity, are one. The findings beside this one say why others did not count."
        ),
    ),
    Entry(
        id="policy.payload-differs",
        verdict=Verdict.FAILED,
        message="co-signatures are over different statements",
        explanation=(
            "Every bundle of one set must carry the same payload, byte for byte. Signatures over different statements do not add up:\n"
            "each signer agreed to something else."
        ),
    ),
    Entry(
        id="policy.statement-type",
        verdict=Verdict.FAILED,
        message="the signed payload is not the statement that was asked for",
        explanation=(
            "The bundle's payload is no in-toto statement, or one of another predicate type, kind or stage. A genuine signature over\n"
            "something else proves nothing here."
        ),
    ),
    Entry(
        id="policy.transparency-missing",
        verdict=Verdict.UNTRUSTED,
        message="no verified log entry, which the policy needs",
        explanation=(
            "The policy counts this signer only with an entry in a transparency log of the trusted root. The bundle has none that\n"
            "verifies: it was signed without one, or somebody took it out to hide the signature from the log's watchers."
        ),
    ),
    Entry(
        id="policy.timestamp-missing",
        verdict=Verdict.UNTRUSTED,
        message="no verified timestamp, which the policy needs",
        explanation=(
            "The policy counts this signer only with an RFC 3161 timestamp by an authority of the trusted root. The bundle has none that\n"
            "verifies, so when it was signed is the signer's word."
        ),
    ),
    Entry(
        id="policy.key-expired",
        verdict=Verdict.UNTRUSTED,
        message="the key was no longer valid",
        explanation=(
            "The verified signing time lies after the key's `not_after` in the policy. Without a verified signing time the evaluation\n"
            "time counts instead: a signature without a time could have been made today, with a key that was retired long ago."
        ),
    ),
    Entry(
        id="policy.key-not-yet-valid",
        verdict=Verdict.UNTRUSTED,
        message="the key was not valid yet",
        explanation="The verified signing time, or without one the evaluation time, lies before the key's `not_before` in the policy.",
    ),
    Entry(
        id="policy.revoked",
        verdict=Verdict.UNTRUSTED,
        message="the policy revokes this",
        explanation=(
            "The key, certificate, statement or file is one that the policy revokes. Revocation holds whatever the time of signing: once\n"
            "a key is out, its holder can give a signature any date that no log or timestamp authority contradicts."
        ),
    ),
    Entry(
        id="policy.assertion-not-allowed",
        verdict=Verdict.UNTRUSTED,
        message="none of the signers may assert this",
        explanation=(
            "Hardware class, claim scope and authorization grant are the operator's word. The policy says whose word counts, and none of\n"
            "the signers that were accepted is among them, so the assertion is refused, and with it the evidence."
        ),
    ),
    Entry(
        id="policy.hardware-class",
        verdict=Verdict.INCOMPLETE,
        message="the run is of another hardware class than the policy asks for",
        explanation=(
            "The same code runs on every class, but a run on one says nothing about another: a reference-cpu run never satisfies a\n"
            "policy that asks for h20-4x8. The evidence may be honest; it is not what was asked for."
        ),
    ),
    Entry(
        id="policy.claim-scope",
        verdict=Verdict.INCOMPLETE,
        message="the evidence may be used for something else than the policy asks for",
        explanation=(
            "A claim scope says what a receipt may be used for. One of execution never satisfies a policy that asks for numerical\n"
            "correctness. The evidence may be honest; it is not what was asked for."
        ),
    ),
    Entry(
        id="policy.authorization-missing",
        verdict=Verdict.INCOMPLETE,
        message="there is no authorization grant, which the policy asks for",
        explanation=(
            "The policy takes only runs that somebody was authorized to start: a grant by whom its rule for grants names, as\n"
            "attestations/grant.sigstore.json. What a deployment says of its own authorization is nothing."
        ),
    ),
    Entry(
        id="policy.required-missing",
        verdict=Verdict.INCOMPLETE,
        message="a statement that the policy requires is not there",
        explanation=(
            "The rule for this evidence requires statements of other rules beside it: another stage, or another predicate. The evidence\n"
            "at hand holds none of that role, or none that was accepted."
        ),
    ),
    Entry(
        id="policy.version-too-old",
        verdict=Verdict.INCOMPLETE,
        message="the release is older than the policy takes",
        explanation=(
            "The signed version lies below the rule's `minimum_version`. An old release is as genuine as on its first day, and offering\n"
            "it again is how a known fault is brought back."
        ),
    ),
    Entry(
        id="policy.too-old",
        verdict=Verdict.INCOMPLETE,
        message="signed longer ago than the policy takes",
        explanation="Between the verified signing time and the evaluation time lie more days than the rule's `maximum_age_days`.",
    ),
    Entry(
        id="policy.time-unknown",
        verdict=Verdict.INCOMPLETE,
        message="no verified signing time, and the rule is about age",
        explanation=(
            "Signing time comes from a verified timestamp or log entry and from nowhere else; what the evidence says of its own time is\n"
            "its word. Without one an age cannot be judged. Sign with a timestamp, or take the rule on age out of the policy."
        ),
    ),
    Entry(
        id="policy.signed-later",
        verdict=Verdict.INCOMPLETE,
        message="signed after the time at which it is judged",
        explanation=(
            "The verified signing time lies after the evaluation time: at that time this signature did not exist. The clock is slow, or\n"
            "--at asks about a time before the evidence."
        ),
    ),
)
