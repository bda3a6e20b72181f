"""`mint2m verify` alone: what lies in a folder, how each thing could be verified, and which anchor that needs.

The rule: a survey looks at names and into small documents, and concludes nothing. It verifies no byte, so it accepts
nothing, and an anchor that it finds beside evidence it names as a candidate only: whoever put the evidence there may
have put the key there, too.
"""

from __future__ import annotations

import enum
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found

#: Entries of the folder that are looked at.
_MOST = 2000

#: Larger documents are left out: a survey must not take the time of a verification.
_READ_LIMIT = 4 << 20

_RELEASE = re.compile(r"mint2m-v[0-9].*-release-bundle\.tar\.gz")
_SCHEMA = re.compile(rb'"schema": ?"mint2m\.([a-z-]+)/v[0-9]+"')


class Role(enum.Enum):
    """What a thing is to a verification."""

    EVIDENCE = "evidence"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One thing in the folder; `arguments` are the command that would verify it, or how it serves as an anchor."""

    role: Role
    path: str
    what: str
    arguments: tuple[str, ...]
    needs: str


def survey(folder: Path) -> tuple[Seen, ...]:
    """What `folder` and the directories right below it hold, evidence first, by name.

    Raises:
        FindingError: `input.missing`, `input.not-a-directory` or `file.unreadable`.
    """
    shown = str(folder)
    if not folder.exists():
        raise FindingError(found("input.missing", file=shown))
    if not folder.is_dir():
        raise FindingError(found("input.not-a-directory", file=shown))
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)[:_MOST]
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=shown, actual=fault.strerror)) from fault
    seen = tuple(_directory(folder)) or tuple(item for entry in entries for item in _entry(entry))
    return tuple(sorted(seen, key=lambda item: (item.role is Role.ANCHOR, item.path)))


def _entry(path: Path) -> Iterator[Seen]:
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(kind):
        yield from _directory(path)
    elif stat.S_ISREG(kind):
        yield from _file(path)


def _directory(path: Path) -> Iterator[Seen]:
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError:
        return
    if layout.RECEIPT in names:
        sealed = (path / layout.SEAL).is_file()
        what = "a sealed run" if sealed else "a run without its seal"
        needs = "--policy F, --key PUB or --digest SHA256" if sealed else "its seal, or --consistency-only"
        yield _evidence(path, what, "run", needs)
    elif ".metadata" in names and any(name.endswith(".distcp") for name in names):
        yield _evidence(
            path, "a checkpoint", "checkpoint", "--manifest F of its run, and --seal with --key, or --digest"
        )


def _file(path: Path) -> Iterator[Seen]:
    name = path.name
    if _RELEASE.fullmatch(name):
        yield _evidence(path, "a release bundle", "bundle", "--policy F, --key PUB or --digest SHA256")
    elif name.endswith(".pub"):
        yield _anchor(path, "a public key", "--key")
    elif name.endswith((".sigstore.json", ".sigstore", ".intoto.jsonl", ".attestation")):
        yield from _signature(path)
    elif name.endswith(".json"):
        yield from _document(path)


def _signature(path: Path) -> Iterator[Seen]:
    signed = next((beside for beside in _beside(path) if beside.is_file()), None)
    if signed is not None:
        arguments = ("verify", "signature", str(signed), "--bundle", str(path))
        needs = "--policy F, --key PUB, or --certificate-identity I --certificate-oidc-issuer U --trusted-root F"
        yield Seen(
            role=Role.EVIDENCE, path=str(path), what=f"a signature of {signed.name}", arguments=arguments, needs=needs
        )


def _beside(path: Path) -> Iterator[Path]:
    """Files that a signature of this name may be of: its name without one suffix after another."""
    parts = path.name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        yield path.with_name(".".join(parts[:count]))


def _document(path: Path) -> Iterator[Seen]:
    try:
        kind = _SCHEMA.search(read_once(path, limit=_READ_LIMIT))
    except FindingError:
        return
    name = "" if kind is None else kind[1].decode()
    if name == "trust-policy":
        yield _anchor(path, "a trust policy", "--policy")
    elif name in ("file-manifest", "model-manifest", "checkpoint-manifest"):
        yield _evidence(path, f"a {name}", "manifest", "--root DIR, and --seal with --key, or --digest")
    elif name == "training-receipt":
        yield _evidence(path, "a training receipt", "receipt", "--seal F with --key PUB, or --digest SHA256")


def _evidence(path: Path, what: str, command: str, needs: str) -> Seen:
    return Seen(role=Role.EVIDENCE, path=str(path), what=what, arguments=("verify", command, str(path)), needs=needs)


def _anchor(path: Path, what: str, option: str) -> Seen:
    needs = "use it only if it did not come with the evidence"
    return Seen(role=Role.ANCHOR, path=str(path), what=what, arguments=(option, str(path)), needs=needs)
