"""The line between sigstore-python and us: neither's yes is enough alone, and nothing it raises gets through.

`OPEN` lists what unmodified sigstore-python accepts and is refused here. Each case is verified with its own `Verifier`
first, so a case that the library learns to refuse fails here and can go.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import Certificate
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier

ENTRY = ("verificationMaterial", "tlogEntries", 0)
CHECKPOINT = (*ENTRY, "inclusionProof", "checkpoint", "envelope")

Given = tuple[dict[str, Any], dict[str, Any]]


class Anybody:
    def verify(self, cert: Certificate) -> None:
        """Every signer will do: only the cryptography is in question."""


def library_accepts(kit: Any, bundle: dict[str, Any], root: dict[str, Any], place: Path) -> bool:
    (place / "root.json").write_text(json.dumps(root))
    verifier = Verifier(trusted_root=TrustedRoot.from_file(str(place / "root.json")))
    read = Bundle.from_json(json.dumps(bundle))
    if "dsseEnvelope" in bundle:
        verifier.verify_dsse(read, Anybody())
    else:
        verifier.verify_artifact(kit.content, read, Anybody())
    return True


def altered(path: tuple[str | int, ...], change: Callable[[Any], Any], log: str = "v2") -> Callable[[Any], Given]:
    def make(kit: Any) -> Given:
        bundle = kit.blob(log, timestamp=True)
        old: Any = bundle
        for step in path:
            old = old[step] if not isinstance(old, dict) else old.get(step, ...)
        return kit.changed(bundle, *path, value=change(old)), kit.root

    return make


def window(part: tuple[str | int, ...], log: str = "v1") -> Callable[[Any], Given]:
    """The part's window ended an hour before the signature."""

    def make(kit: Any) -> Given:
        ended = (kit.now - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        return kit.blob(log), kit.changed(kit.root, *part, "validFor", "end", value=ended)

    return make


def last_bit(text: str) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return base64.b64encode(bytes(raw)).decode()


def in_snake_case(kit: Any) -> Given:
    bundle = kit.blob()
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    entry["log_index"] = entry.pop("logIndex")
    return bundle, kit.root


def another_type_of_payload(kit: Any) -> Given:
    return kit.dsse("v2", payload_type="text/plain"), kit.root


#: What is open, the finding that closes it, and how it is made.
OPEN: tuple[tuple[str, str, Callable[[Any], Given]], ...] = (
    ("an authority past its window", "sigstore.authority-outside-window", window(("certificateAuthorities", 0))),
    ("a log past its window", "sigstore.log-outside-window", window(("tlogs", 0, "publicKey"))),
    ("a certificate log past its window", "sigstore.ct-log-outside-window", window(("ctlogs", 0, "publicKey"))),
    ("an unknown log id", "sigstore.log-unknown", altered((*ENTRY, "logId", "keyId"), last_bit)),
    ("an outer index that nobody signed", "sigstore.log-index-mismatch", altered((*ENTRY, "logIndex"), lambda _: "9")),
    (
        "a promise whose time was removed",
        "sigstore.promise-incomplete",
        altered((*ENTRY, "integratedTime"), lambda _: ..., "v1"),
    ),
    (
        "a time whose promise was removed",
        "sigstore.promise-incomplete",
        altered((*ENTRY, "inclusionPromise"), lambda _: ..., "v1"),
    ),
    (
        "a checkpoint signed in another's name",
        "sigstore.checkpoint-name-mismatch",
        altered(CHECKPOINT, lambda text: text.replace("\u2014 log", "\u2014 lag")),
    ),
    (
        "a checkpoint with a line that is no signature",
        "sigstore.checkpoint-malformed",
        altered(CHECKPOINT, lambda text: f"{text}verified by everybody\n"),
    ),
    ("a member under its other name", "sigstore.bundle-invalid", in_snake_case),
    (
        "base64 with characters that are none",
        "sigstore.base64-invalid",
        altered((*ENTRY, "canonicalizedBody"), lambda text: f"{text[:8]}!{text[8:]}"),
    ),
    ("a number with a sign and spaces", "sigstore.number-invalid", altered((*ENTRY, "logIndex"), lambda v: f" +{v} ")),
    ("a payload of another type", "sigstore.payload-type", another_type_of_payload),
)


@pytest.mark.parametrize(("what", "id", "make"), OPEN, ids=[what for what, _, _ in OPEN])
def test_what_the_library_leaves_open_is_closed(
    what: str, id: str, make: Callable[[Any], Given], kit: Any, tmp_path: Path
) -> None:
    bundle, root = make(kit)
    assert library_accepts(kit, bundle, root, tmp_path)
    assert kit.ids(bundle, root=root) == [id]


def test_a_library_that_stops_looking_is_not_believed(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sigstore.verify.Verifier.verify_artifact", lambda *_, **__: None)
    assert kit.ids(kit.blob()) == ["sigstore.refused"]


def test_a_library_that_verified_something_else_is_not_believed(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = kit.dsse()
    assert kit.ids(bundle) == []
    monkeypatch.setattr("sigstore.verify.Verifier.verify_dsse", lambda *_, **__: ("text/plain", b"other"))
    assert kit.ids(bundle) == ["sigstore.refused"]


@pytest.mark.parametrize("kind", [ValueError, TypeError, AttributeError, KeyError, RecursionError, RuntimeError])
def test_whatever_the_library_raises_is_a_refusal_in_its_words(
    kind: type[Exception], kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise kind("from deep within")

    monkeypatch.setattr("sigstore.verify.Verifier.verify_artifact", fail)
    result = kit.verify(kit.blob())
    assert [finding.id for finding in result.findings] == ["sigstore.refused"]
    assert "from deep within" in str(result.findings[0].actual)


def test_an_interrupt_is_no_refusal(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sigstore.verify.Verifier.verify_artifact", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kit.verify(kit.blob())
