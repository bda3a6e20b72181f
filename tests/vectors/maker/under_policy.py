"""What the vectors of runs under policies share: a vector with a sound policy, and the signers it may name."""

from __future__ import annotations

from collections.abc import Callable

import rfc8785

from maker.case import vector
from maker.forge import SEAL, Run, bundle, load_key, sha256
from maker.policies import (
    ROOT,
    VERIFY,
    Policy,
    bring,
    identity_signer,
    key_signer,
    payload_of,
    policy,
    root_entry,
    run_rule,
    witnessed,
)

SECOND = "attestations/seal.2.sigstore.json"
THIRD = "attestations/seal.3.sigstore.json"
ONE = "run-one-rank"

OTHER_ROOT = (*VERIFY, "--trusted-root", "{keys}/private-root/other_root.json")

#: The same run, sealed by a certificate under the private root.
CERTIFICATE = {SEAL: "certificate-v1"}


def judged(
    name: str,
    why: str,
    finding: str | None,
    make: Callable[[], Policy],
    exit: int,
    *,
    command: tuple[str, ...] = VERIFY,
    base: str = "run",
    bundles: dict[str, str] | None = None,
    also: tuple[str, ...] = (),
) -> None:
    """A vector with a sound policy; `bundles` of the private root take the places that are named."""

    @vector(name, why, finding, base=base, command=command, exit=exit, also=also)
    def _(run: Run) -> None:
        bring(run, make())
        for place, witness in (bundles or {}).items():
            run.files[place] = witnessed(witness)


def cosigned(run: Run, place: str, key: str, payload: bytes | None = None) -> None:
    run.files[place] = rfc8785.dumps(bundle(payload or payload_of(run.base), load_key(key)))


def two(**changes: object) -> Policy:
    """Two signers, both of whom must have signed."""
    signers = (key_signer("operator"), key_signer("witness", "release-p256"))
    return policy(*signers, rules=[run_rule("operator", "witness", threshold=2)], **changes)


def private(*signers: Policy, **changes: object) -> Policy:
    """Signers under the private root."""
    return policy(*(signers or (identity_signer(),)), roots=[root_entry()], **changes)


def timed_key(**changes: object) -> Policy:
    """The key of the run of one rank, for which the private root may witness."""
    return key_signer("operator", "release-p256", roots=["private"], **changes)


def other_root() -> Policy:
    return root_entry(sha256=sha256((ROOT / "other_root.json").read_bytes()))
