"""A private root in a directory: whole or not there, its secrets closed, its log going on."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify.finding import FindingError
from mint2m_verify.signers.choose import SignerOptions
from mint2m_verify.signers.private_log import LeavesOnDisk
from mint2m_verify.signers.private_root_files import create_private_root, load_private_root
from mint2m_verify.sigstore_bundle import Artifact, CertificateSigner, load_root, read_bundle, verify_bundle

WHO, ISSUER = "release@example.org", "https://issuer.example.org"
Mint2m = Callable[..., subprocess.CompletedProcess[str]]


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(FindingError) as raised:
        call()
    return raised.value.finding.id


def test_only_the_owner_reads_the_secrets_and_everything_is_labelled(mint2m: Mint2m, tmp_path: Path) -> None:
    done = mint2m("trust", "private-root", "--output", tmp_path / "root")
    assert done.returncode == 0
    public = (tmp_path / "root" / "trusted_root.json").read_bytes()
    assert hashlib.sha256(public).hexdigest() in done.stdout
    secrets = tmp_path / "root" / "private"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()} == {0o600}
    assert len(list(secrets.iterdir())) == 4
    assert b"PRIVATE" not in public
    assert "exactly as much as whoever holds" in (tmp_path / "root" / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


def test_a_root_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    assert fault(lambda: create_private_root(tmp_path / "root")) == "file.exists"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert fault(lambda: create_private_root(tmp_path / "link")) == "file.exists"
    assert fault(lambda: create_private_root(tmp_path / "none" / "root")) == "file.unwritable"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "root"]


def test_files_signed_by_commands_verify_under_the_public_half(mint2m: Mint2m, tmp_path: Path) -> None:
    create_private_root(tmp_path / "root")
    root = load_root(tmp_path / "root" / "trusted_root.json")
    for index, text in enumerate(("abc", "def")):
        file = tmp_path / f"{index}.txt"
        file.write_text(text)
        done = mint2m("sign", "file", file, "--private-root", tmp_path / "root", "--identity", WHO, "--issuer", ISSUER)
        assert done.returncode == 0, done.stdout
        bundle = read_bundle((tmp_path / f"{index}.txt.sigstore.json").read_bytes(), file="b")
        artifact = Artifact(name=None, sha256=hashlib.sha256(text.encode()).hexdigest())
        result = verify_bundle(bundle, root=root, artifact=artifact)
        assert result.findings == () and result.verified is not None
        assert isinstance(result.verified.signer, CertificateSigner) and result.verified.signer.san == WHO
        assert result.verified.logged and result.verified.timestamped
        assert bundle.entries[0].log_index == index  # the log went on where the other process stopped
    assert len((tmp_path / "root" / "log.jsonl").read_bytes().splitlines()) == 2


def test_the_log_on_disk_is_the_log_that_was_signed(tmp_path: Path) -> None:
    """Root and paths again from the file alone, by the recursion that RFC 6962 states."""
    create_private_root(tmp_path / "root")
    signer = SignerOptions(private_root=tmp_path / "root", identity=WHO, issuer=ISSUER).choose()
    bundles = [json.loads(signer.sign_digest(bytes([n] * 32))) for n in range(7)]
    leaves = (tmp_path / "root" / "log.jsonl").read_bytes().splitlines()

    def tree(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return hashlib.sha256(b"\0" + part[0]).digest()
        split = max(2**k for k in range(10) if 2**k < len(part))
        return hashlib.sha256(b"\1" + tree(part[:split]) + tree(part[split:])).digest()

    import base64

    for size, bundle in enumerate(bundles, start=1):
        proof = bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]
        assert base64.b64decode(proof["rootHash"]) == tree(leaves[:size])


def test_a_line_that_was_cut_off_is_dropped_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    leaves = LeavesOnDisk(tmp_path / "log.jsonl")
    leaves.append(b"one")
    with (tmp_path / "log.jsonl").open("ab") as stream:
        stream.write(b'{"half')
    index, hashes = leaves.append(b"two")
    assert (index, len(hashes)) == (1, 2)
    assert (tmp_path / "log.jsonl").read_bytes() == b"one\ntwo\n"


def test_processes_that_sign_at_once_get_places_of_their_own(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mint2m_verify.signers.private_log import LeavesOnDisk\n"
        "leaves = LeavesOnDisk(Path(sys.argv[1]))\n"
        "print(*(leaves.append(b'%s %d' % (sys.argv[2].encode(), n))[0] for n in range(40)))\n"
    )
    log = tmp_path / "log.jsonl"
    log.touch()
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(log), name], stdout=subprocess.PIPE) for name in ("a", "b")
    ]
    places = [int(word) for process in running for word in process.communicate()[0].split()]
    assert sorted(places) == list(range(80))
    assert len(set(log.read_bytes().splitlines())) == 80


def test_a_log_that_is_gone_does_not_begin_again(tmp_path: Path) -> None:
    create_private_root(tmp_path / "root")
    signer = SignerOptions(private_root=tmp_path / "root", identity=WHO, issuer=ISSUER).choose()
    signer.sign_digest(bytes(32))
    (tmp_path / "root" / "log.jsonl").unlink()
    assert fault(lambda: signer.sign_digest(bytes(32))) == "file.unwritable"
    assert not (tmp_path / "root" / "log.jsonl").exists()


@pytest.mark.parametrize(
    ("identity", "issuer"),
    [("nobody", ISSUER), ("", ISSUER), (WHO, ""), (WHO, "issuer"), (WHO, "https://a\nb"), (WHO, "https://\u00fc")],
)
def test_names_that_no_certificate_holds_are_refused_before_anything_is_signed(
    tmp_path: Path, identity: str, issuer: str
) -> None:
    create_private_root(tmp_path / "root")
    options = SignerOptions(private_root=tmp_path / "root", identity=identity, issuer=issuer)
    assert fault(options.choose) == "signer.identity-invalid"
    assert (tmp_path / "root" / "log.jsonl").read_bytes() == b""


def test_secrets_of_another_root_are_found_out(tmp_path: Path) -> None:
    create_private_root(tmp_path / "root")
    create_private_root(tmp_path / "other")
    for name in ("ca", "ct", "log", "tsa"):
        mine = tmp_path / "root" / "private" / f"{name}.key"
        kept = mine.read_bytes()
        mine.write_bytes((tmp_path / "other" / "private" / f"{name}.key").read_bytes())
        assert fault(lambda: load_private_root(tmp_path / "root")) == "signer.private-root-invalid"
        mine.write_bytes(kept)
    load_private_root(tmp_path / "root")


@pytest.mark.parametrize(
    "change",
    [
        {"tlogs": []},
        {"certificateAuthorities": []},
        {"timestampAuthorities": [{}]},
        {"timestampAuthorities": None},
        {"certificateAuthorities": [{"certChain": {"certificates": [{"rawBytes": "AAAA"}]}}]},
        {"certificateAuthorities": [{"certChain": {"certificates": []}}]},
    ],
)
def test_another_trusted_root_than_its_own_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    from mint2m_verify.canonical import canonical

    create_private_root(tmp_path / "root")
    place = tmp_path / "root" / "trusted_root.json"
    place.write_bytes(canonical({**json.loads(place.read_bytes()), **change}))  # type: ignore[dict-item]
    assert fault(lambda: load_private_root(tmp_path / "root")) == "signer.private-root-invalid"


def test_what_is_no_root_is_the_callers_fault(tmp_path: Path) -> None:
    assert fault(lambda: load_private_root(tmp_path / "none")) == "input.missing"
    assert fault(lambda: load_private_root(tmp_path)) == "input.missing"
    create_private_root(tmp_path / "root")
    (tmp_path / "root" / "private" / "log.key").unlink()
    assert fault(lambda: load_private_root(tmp_path / "root")) == "input.missing"
