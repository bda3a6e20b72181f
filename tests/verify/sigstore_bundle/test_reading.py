"""Readers: lines of bundles, PEP 740 attestations, key hints, checkpoints; and what importing them costs."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify import signing
from mint2m_verify.finding import FindingError
from mint2m_verify.sigstore_bundle import Envelope, packaged_root, read_bundle, read_bundles
from mint2m_verify.sigstore_bundle.checkpoint import Checkpoint, parse_checkpoint
from mint2m_verify.sigstore_bundle.identity import matches


def refused(raw: bytes, *, many: bool = False) -> tuple[str, str | None]:
    with pytest.raises(FindingError) as caught:
        (read_bundles if many else read_bundle)(raw, file="f")
    return caught.value.finding.id, caught.value.finding.pointer


def test_lines_are_read_as_many_bundles_and_a_pretty_document_as_one(kit: Any) -> None:
    one, two = kit.blob(), kit.dsse()
    lines = f"{json.dumps(one)}\n{json.dumps(two)}\n".encode()
    assert [bundle.file for bundle in read_bundles(lines, file="f")] == ["f:1", "f:2"]
    assert [bundle.file for bundle in read_bundles(json.dumps(one, indent=2).encode(), file="f")] == ["f"]
    assert [bundle.file for bundle in read_bundles(json.dumps(one).encode(), file="f")] == ["f"]


def test_one_line_that_is_no_bundle_refuses_the_file(kit: Any) -> None:
    line = json.dumps(kit.blob()).encode()
    assert refused(line + b"\n{}\n", many=True)[0] == "sigstore.bundle-invalid"
    assert refused(line + b"\nnot json\n", many=True)[0] == "json.malformed"
    assert refused(line + b"\n" + line[:-9], many=True)[0] == "json.malformed"


def test_what_two_parsers_read_differently_is_refused(kit: Any) -> None:
    raw = json.dumps(kit.blob())
    twice = raw.replace('"mediaType":', '"mediaType": "x", "mediaType":', 1).encode()
    assert refused(twice)[0] == "json.duplicate-key"
    assert refused(b"\xef\xbb\xbf" + raw.encode())[0] in ("json.malformed", "json.not-utf8")
    assert refused(raw.encode() + b" {}")[0] == "json.malformed"
    assert refused(b"[" * 100 + b"]" * 100)[0] == "json.too-deep"
    assert refused(b" " * (33 << 20))[0] == "json.too-large"


def attestation(bundle: Any) -> Any:
    """The PEP 740 form of a DSSE bundle: the same bytes under other names."""
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    return {
        "version": 1,
        "verification_material": {
            "certificate": material["certificate"]["rawBytes"],
            "transparency_entries": material["tlogEntries"],
        },
        "envelope": {"statement": envelope["payload"], "signature": envelope["signatures"][0]["sig"]},
    }


def test_an_attestation_is_the_bundle_that_it_stands_for(kit: Any) -> None:
    document = kit.dsse()
    raw = json.dumps(attestation(document)).encode()
    read, whole = read_bundle(raw, file="f"), read_bundle(json.dumps(document).encode(), file="f")
    assert isinstance(read.content, Envelope)
    assert (read.content, read.certificate, read.entries) == (whole.content, whole.certificate, whole.entries)
    assert kit.ids(raw) == []


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"version": 2}, "sigstore.version-unknown"),
        ({"version": True}, "sigstore.version-unknown"),
        ({"version": "1"}, "sigstore.version-unknown"),
        ({"envelope": {"statement": "AAAA"}}, "sigstore.bundle-invalid"),
        ({"more": 1}, "sigstore.bundle-invalid"),
    ],
)
def test_an_attestation_of_another_form_is_refused(change: Any, id: str, kit: Any) -> None:
    assert refused(json.dumps({**attestation(kit.dsse()), **change}).encode())[0] == id


def test_base64_in_lines_of_76_is_read_and_no_other_line_break(kit: Any) -> None:
    document = kit.blob("v2")
    path = ("verificationMaterial", "timestampVerificationData", "rfc3161Timestamps", 0, "signedTimestamp")
    token = base64.b64decode(document["verificationMaterial"][path[1]][path[2]][0][path[4]])
    lines = base64.encodebytes(token).decode()
    assert kit.ids(kit.changed(document, *path, value=lines.removesuffix("\n"))) == []
    for other in (lines, lines.replace("\n", "\r\n"), base64.b64encode(token).decode() + "\n"):
        assert kit.ids(kit.changed(document, *path, value=other)) == ["sigstore.base64-invalid"]


def test_a_key_is_found_by_every_hint_that_tools_write(kit: Any) -> None:
    key = kit.key.public_key()
    der = hashlib.sha256(signing.public_key_der(key))
    encoded = base64.b64encode(der.digest()).decode()
    pem = hashlib.sha256(signing.public_key_pem(key)).hexdigest()
    hint = ("verificationMaterial", "publicKey", "hint")
    for words in (encoded, der.hexdigest(), pem, f"SHA256:{encoded}", f"SHA256:{encoded.rstrip('=')}", ""):
        assert kit.ids(kit.changed(kit.by_key(), *hint, value=words), root=None, keys=(key,)) == [], words
    for words in ("other", der.hexdigest().upper(), encoded[:-1]):
        bundle = kit.changed(kit.by_key(), *hint, value=words)
        assert kit.ids(bundle, root=None, keys=(key,)) == ["signature.key-mismatch"], words


def test_a_forged_signature_under_a_known_hint_is_no_strangers(kit: Any) -> None:
    forged = kit.by_key(key=signing.new_private_key())
    mine = kit.by_key()["verificationMaterial"]
    bundle = kit.changed(forged, "verificationMaterial", value=mine)
    assert kit.ids(bundle, root=None, keys=(kit.key.public_key(),)) == ["signature.invalid"]


def test_of_several_keys_the_one_that_signed_is_named(kit: Any) -> None:
    keys = (signing.new_private_key().public_key(), kit.key.public_key())
    verified = kit.verify(kit.by_key(payload=kit.statement()), root=None, keys=keys).verified
    assert verified.signer.spki_sha256 == signing.key_id(keys[1])


NOTE = "log.example\n7\n" + base64.b64encode(bytes(32)).decode() + "\n"
LINE = "\u2014 log.example " + base64.b64encode(b"hint" + b"signature").decode() + "\n"


def test_a_checkpoint_is_read_with_all_its_lines() -> None:
    checkpoint = parse_checkpoint(f"{NOTE}more\n\n{LINE}{LINE.replace('log', 'witness')}")
    assert isinstance(checkpoint, Checkpoint)
    assert (checkpoint.origin, checkpoint.size, checkpoint.root_hash) == ("log.example", 7, bytes(32))
    assert [line.name for line in checkpoint.signatures] == ["log.example", "witness.example"]
    assert checkpoint.note == f"{NOTE}more\n".encode()  # C2SP: everything up to the blank line, its newline included


@pytest.mark.parametrize(
    "text",
    [
        NOTE,
        f"{NOTE}\n",
        f"{NOTE}\n{LINE.rstrip()}",
        f"{NOTE}\n{LINE}x\n",
        f"{NOTE}\n{LINE}\n",
        f"{NOTE}\n{LINE}\n{LINE}",
        f"\n{NOTE}\n{LINE}",
        NOTE.replace("7", "07") + f"\n{LINE}",
        NOTE.replace("7", "-7") + f"\n{LINE}",
        NOTE.replace("A=", "B=") + f"\n{LINE}",
        NOTE.replace("AAAA", "", 1) + f"\n{LINE}",
        f"{NOTE}\n{LINE.replace(' ', '  ', 1)}",
        f"{NOTE}\n\u2014 log.example aGludA==\n",  # a hint and no signature
        f"{NOTE}\n- log.example aGludHNpZw==\n",
    ],
)
def test_a_checkpoint_with_room_to_write_in_is_refused(text: str) -> None:
    assert isinstance(parse_checkpoint(text), str)


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "ab", True),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*", "a", False),
        ("", "", False),
        ("a*b", "aXb", False),
        ("a**", "a*b", True),
        ("a.", "ab", False),
    ],
)
def test_a_pattern_is_exact_up_to_one_trailing_star(pattern: str, value: str, expected: bool) -> None:
    assert matches(pattern, value) is expected


def test_the_packaged_root_is_the_file_that_sigstore_ships() -> None:
    from sigstore.models import TrustedRoot

    root = packaged_root("public-good")
    assert root.sha256 == hashlib.sha256(root.raw).hexdigest()
    from importlib import resources

    place = resources.files("sigstore._store") / "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev" / "trusted_root.json"
    theirs = TrustedRoot.from_file(str(place))
    assert len(root.authorities) == len(theirs._inner.certificate_authorities) == 2
    assert [log.url for log in root.logs] == [log.base_url for log in theirs._inner.tlogs]


def test_a_key_without_a_log_needs_neither_sigstore_nor_certificates(kit: Any, tmp_path: Path) -> None:
    (tmp_path / kit.name).write_bytes(kit.content)
    (tmp_path / "bundle").write_text(json.dumps(kit.by_key()))
    (tmp_path / "key.pub").write_bytes(signing.public_key_pem(kit.key.public_key()))
    code = (
        "import sys\n"
        "from mint2m.__main__ import run\n"
        f"print(int(run(['verify', 'signature', {kit.name!r}, '--bundle', 'bundle', '--key', 'key.pub']).verdict))\n"
        "print([m for m in ('sigstore', 'cryptography.x509', 'pydantic', 'rfc3161_client', 'jsonschema') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "[]"]


HOOK = """
import os, sys
FORBIDDEN = ("socket.", "subprocess.", "os.mkdir", "os.rename", "os.remove", "tempfile.", "urllib.")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and bool(args[2] & WRITING)
    if event.startswith(FORBIDDEN) or (writes and args[0] != os.devnull):
        os.write(2, f"FORBIDDEN {event} {args!r}\\n".encode())
        os._exit(99)
sys.dont_write_bytecode = True
sys.addaudithook(hook)
from mint2m.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_certificates_are_verified_without_network_home_or_a_written_byte(
    wrong: bool, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    world = shared("realworld")
    bundle = "MODULE-wrong-signer.bazel.intoto.jsonl" if wrong else "MODULE.bazel.intoto.jsonl"
    words = ["verify", "signature", world / "MODULE.bazel", "--bundle", world / bundle, "--trusted-root", "public-good"]
    words += ["--certificate-oidc-issuer", "https://token.actions.githubusercontent.com", "--certificate-identity"]
    words += ["https://github.com/bazel-contrib/publish-to-bcr/.github/workflows/publish.yaml@refs/tags/v0.0.1"]
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    done = subprocess.run(
        [sys.executable, "-c", HOOK, *map(str, words)],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (4 if wrong else 0, "")
    assert list(home.iterdir()) == []
