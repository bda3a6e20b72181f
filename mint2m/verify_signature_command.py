"""`mint2m verify signature FILE --bundle F`: any signed file, by a policy, an identity or a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.option_groups import grouped
from mint2m.outcome import Outcome
from mint2m.verify_options import At, Key, Policy, Telling


@grouped
def signature(
    artifact: Annotated[str, typer.Argument(metavar="FILE|sha256:HEX", help="The signed file, or its digest alone.")],
    bundle: Annotated[
        list[Path], typer.Option("--bundle", help="Sigstore bundle, lines of them, or PEP 740; repeat for more.")
    ],
    policy: Policy = None,
    certificate_identity: Annotated[
        str | None, typer.Option("--certificate-identity", help="Anchor: who signed, exact or up to a trailing *.")
    ] = None,
    certificate_oidc_issuer: Annotated[
        str | None, typer.Option("--certificate-oidc-issuer", help="The provider that vouches for that identity.")
    ] = None,
    key: Key = None,
    trusted_root: Annotated[
        Path | None, typer.Option("--trusted-root", help="Sigstore root to believe: a file, or public-good.")
    ] = None,
    predicate_type: Annotated[
        str | None, typer.Option("--predicate-type", help="What each bundle must be a statement of.")
    ] = None,
    at: At = None,
    *,
    telling: Telling,
) -> Outcome:
    """Verify a signed file: every bundle must hold, be about it, and be by whom you name."""
    from mint2m_verify.verify_signature import choose_signer, verify_signature

    anchor = choose_signer(
        policy=policy,
        identity=certificate_identity,
        issuer=certificate_oidc_issuer,
        key=key,
        trusted_root=trusted_root,
        at=at,
    )
    return telling.present(verify_signature(artifact, bundle, anchor, predicate_type=predicate_type, at=at))
