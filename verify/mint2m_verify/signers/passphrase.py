"""Where passphrases and PINs come from: a file, or a person at a terminal.

The rule: a secret is never an argument and never an environment variable, since both are shown to other processes, and
it never reaches a finding or a log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named

#: Asks a person for what the argument names; None where nobody is there to be asked.
Ask: TypeAlias = Callable[[str], bytes | None]

#: What OpenSSL reads at most.
LONGEST = 1023


def nobody(wanted: str) -> bytes | None:
    """The `Ask` of a process without a terminal."""
    return None


def read_passphrase(path: Path) -> bytes:
    """The passphrase in a file, without its last line end.

    Raises:
        FindingError: `input.missing`, `file.*` or `key.passphrase-empty`.
    """
    raw = read_named(path, limit=LONGEST + 2)
    return checked(raw.removesuffix(b"\n").removesuffix(b"\r"), file=str(path))


def checked(secret: bytes, *, file: str | None = None) -> bytes:
    """`secret` itself; raises `FindingError` (`key.passphrase-empty`) where it is empty or longer than can be typed."""
    if not 0 < len(secret) <= LONGEST:
        raise FindingError(found("key.passphrase-empty", file=file, expected=f"1 to {LONGEST} bytes"))
    return secret


class Opener:
    """Where the passphrase of one key comes from: a secret that was given, or a person; knows whether it was needed."""

    def __init__(self, key: Path, *, secret: bytes | None, ask: Ask) -> None:
        self._key, self._secret, self._ask = key, secret, ask
        self._needed = False

    def __call__(self) -> bytes | None:
        self._needed = True
        return self._secret if self._secret is not None else self._ask(f"passphrase of {self._key.name}")

    def check_needed(self) -> None:
        """Raises `FindingError` (`key.not-encrypted`) for a secret that opened nothing."""
        if self._secret is not None and not self._needed:
            raise FindingError(found("key.not-encrypted", file=str(self._key)))


def new_passphrase(file: Path | None, ask: Ask | None) -> bytes | None:
    """The passphrase of a key to be made: from `file`, or asked for, or None where the key is to have none.

    Raises:
        FindingError: `usage.invalid` for both, `key.passphrase-empty`, `signer.secret-missing` where nobody answered.
    """
    if file is not None and ask is not None:
        raise FindingError(found("usage.invalid", expected="--passphrase or --passphrase-file", actual="both"))
    if file is not None:
        return read_passphrase(file)
    if ask is None:
        return None
    secret = ask("passphrase")
    if secret is None:
        raise FindingError(found("signer.secret-missing", expected="a passphrase typed twice on a terminal"))
    return checked(secret)
