"""Names of signers: exact, or a beginning and one trailing `*`; and which of those are too wide to name anybody.

The rule: a star stands only behind a part of the name that has one owner. `https://github.com/*` is everybody there,
and `https://github.com/acme*` is also whoever registers `acme-evil`; behind `https://github.com/acme/` all names are
acme's. A mail address ends in its domain, so behind a star there it could be anybody's, and it has none.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from mint2m_verify.documents.trust_policy import SigstoreIdentity


def is_open(identity: SigstoreIdentity) -> bool:
    """Whether more than one (issuer, SAN) pair can match."""
    return identity.san.endswith("*") or identity.issuer.endswith("*")


def width_fault(pattern: str) -> str | None:
    """Why the pattern names nobody in particular, or None where it does."""
    if "*" in pattern[:-1]:
        return "a star before the end"
    if not pattern.endswith("*"):
        return None
    start = pattern[:-1]
    try:
        parts = urlsplit(start)
    except ValueError:
        return "no URI before the star"
    if not parts.scheme or not parts.netloc:
        return "a star needs a URI with a whole host before it"
    # The first segment of the path is the owner's, and only a slash behind it ends its name.
    owner, closed, _ = parts.path.removeprefix("/").partition("/")
    if not owner or not closed:
        return "a star needs the owner's whole segment of the path before it, with its slash"
    if {".", ".."} & set(start.split("/")):
        return "a path with . or .. segments"
    return None
