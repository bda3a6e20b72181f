"""`mint2m trust private-root`: a Sigstore-compatible root of one's own, for CI and for sites without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome


def add_to(group: typer.Typer) -> None:
    """Add the command to the `trust` group."""
    group.command("private-root")(private_root)


def private_root(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory for the root.")],
) -> Outcome:
    """Make a private Sigstore root, worth exactly as much as whoever holds its secrets: they can sign as anybody."""
    from mint2m_verify.canonical import sha256_hex
    from mint2m_verify.render.escape import escape
    from mint2m_verify.signers.private_root_files import SECRETS, TRUSTED_ROOT, create_private_root

    root = create_private_root(output)
    rows = (
        f"root  {sha256_hex(root.trusted_root())}",
        f"      {escape(str(output / TRUSTED_ROOT))}   public: give it to whoever verifies",
        f"      {escape(str(output / SECRETS))}/   secret: whoever reads it can sign as anybody, at any time",
    )
    return Outcome(text="\n".join(rows))
