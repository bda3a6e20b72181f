"""Model signatures between this verifier and unmodified model_signing, both ways, by the command lines of both."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mint2m.__main__ import run as command_line

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("model_signing") is None or importlib.util.find_spec("OpenSSL") is None,
    reason="model-signing and pyOpenSSL are not installed: pip install 'mint2m[dev]'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command line that ran in this process: starting an interpreter for each would take most of the time."""

    returncode: int
    stdout: str
    stderr: str = ""


def theirs(*arguments: object) -> Done:
    from click.testing import CliRunner
    from model_signing._cli import main

    result = CliRunner().invoke(main, [str(word) for word in arguments])
    return Done(returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)


def mint2m(*arguments: object) -> Done:
    outcome = command_line([str(word) for word in arguments])
    return Done(returncode=int(outcome.verdict), stdout=outcome.text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model directory `model`, whose names sort differently as strings and as paths, and a key pair `k`."""
    model = tmp_path / "model"
    for path, content in {
        "a/b": b"below a",
        "a.txt": b"beside a",
        "a-b": b"",
        "weights/part-1": bytes(range(256)) * 5000,
        "weights/\u00fc": b"nicht ASCII",
        ".git/config": b"git's own",
        ".gitignore": b"x",
        ".github/workflow.yml": b"x",
    }.items():
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_bytes(content)
    assert mint2m("keys", "new", tmp_path / "k").returncode == 0
    return tmp_path


@pytest.mark.parametrize("signature", ["model.sig", "model/model.sig", "model/weights/here.sig"])
def test_model_signing_verifies_what_is_signed_here(place: Path, signature: str) -> None:
    done = mint2m("sign", "tree", place / "model", "--key", place / "k.key", "--output", place / signature)
    assert done.returncode == 0, done.stdout
    command = ("verify", "key", place / "model", "--signature", place / signature, "--public_key", place / "k.pub")
    assert theirs(*command).returncode == 0
    (place / "model" / "a.txt").write_bytes(b"besides a")
    refused = theirs(*command)
    assert refused.returncode == 1 and "a.txt" in refused.stderr


@pytest.mark.parametrize("signature", ["model.sig", "model/model.sig"])
@pytest.mark.parametrize("options", [(), ("--no-ignore-git-paths",)])
def test_what_model_signing_signs_is_verified_here(place: Path, signature: str, options: tuple[str, ...]) -> None:
    made = theirs(
        "sign", "key", place / "model", "--signature", place / signature, "--private_key", place / "k.key", *options
    )
    assert made.returncode == 0, made.stderr
    command = ("verify", "checkpoint", place / "model", "--signature", place / signature, "--key", place / "k.pub")
    done = mint2m(*command, "--format", "json")
    assert done.returncode == 0, done.stdout
    left_out = [note for note in json.loads(done.stdout)["not_checked"] if "leaves out" in note]
    assert bool(left_out) == (not options or signature.startswith("model/"))
    assert any(".git/config" in note for note in left_out) == (not options)
    (place / "model" / "a.txt").write_bytes(b"besides a")
    assert (mint2m(*command).returncode, "tree.file-changed" in mint2m(*command).stdout) == (1, True)


def test_both_make_the_same_statement(place: Path) -> None:
    import base64

    for path in (place / "ours", place / "theirs"):
        command: tuple[object, ...]
        if path.name == "ours":
            command = ("sign", "tree", place / "model", "--key", place / "k.key", "--output", path)
            assert mint2m(*command).returncode == 0
        else:
            command = ("sign", "key", place / "model", "--private_key", place / "k.key", "--signature", path)
            assert theirs(*command).returncode == 0
    ours, other = (json.loads((place / name).read_bytes()) for name in ("ours", "theirs"))
    assert ours["verificationMaterial"] == other["verificationMaterial"]
    assert ours.keys() == other.keys()
    statements = [json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"])) for bundle in (ours, other)]
    for statement in statements:
        statement["predicate"]["serialization"]["ignore_paths"].sort()  # model_signing keeps them in a set
    assert statements[0] == statements[1]


def test_an_exception_beyond_the_usual_is_refused(place: Path) -> None:
    made = theirs(
        "sign", "key", place / "model", "--signature", place / "s", "--private_key", place / "k.key",
        "--ignore-paths", place / "model" / "weights",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    (place / "model" / "weights" / "part-1").write_bytes(b"something else")
    accepted = theirs(
        "verify", "key", place / "model", "--signature", place / "s", "--public_key", place / "k.pub",
        "--ignore-paths", place / "model" / "weights",
    )  # fmt: skip
    assert accepted.returncode == 0  # which is why it is refused here
    done = mint2m("verify", "checkpoint", place / "model", "--signature", place / "s", "--key", place / "k.pub")
    assert done.returncode == 1 and "model-signature.ignores-more" in done.stdout


def test_a_link_is_refused_even_where_its_signer_allowed_links(place: Path) -> None:
    (place / "model" / "link").symlink_to(place / "model" / "a.txt")
    made = theirs(
        "sign", "key", place / "model", "--signature", place / "s", "--private_key", place / "k.key", "--allow_symlinks"
    )
    assert made.returncode == 0, made.stderr
    done = mint2m("verify", "checkpoint", place / "model", "--signature", place / "s", "--key", place / "k.pub")
    assert done.returncode == 1 and "tree.symlink" in done.stdout
    ours = mint2m("sign", "tree", place / "model", "--key", place / "k.key", "--output", place / "t")
    assert ours.returncode == 1 and not (place / "t").exists()


@pytest.mark.parametrize("curve", ["secp384r1", "secp521r1"])
def test_a_key_on_another_curve_is_blocked_both_ways(place: Path, curve: str) -> None:
    private, public = place / "c.key", place / "c.pub"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-out", private],
        check=True,
    )
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    made = theirs("sign", "key", place / "model", "--signature", place / "s", "--private_key", private)
    assert made.returncode == 0, made.stderr
    verified = mint2m("verify", "checkpoint", place / "model", "--signature", place / "s", "--key", public)
    signed = mint2m("sign", "tree", place / "model", "--key", private, "--output", place / "t")
    assert (verified.returncode, signed.returncode) == (2, 2)
    assert "key.unsupported" in verified.stdout and not (place / "t").exists()


def test_ed25519_is_blocked_both_ways(place: Path) -> None:
    assert mint2m("keys", "new", place / "e", "--type", "ed25519").returncode == 0
    signed = mint2m("sign", "tree", place / "model", "--key", place / "e.key", "--output", place / "t")
    assert mint2m("sign", "tree", place / "model", "--key", place / "k.key", "--output", place / "s").returncode == 0
    verified = mint2m("verify", "checkpoint", place / "model", "--signature", place / "s", "--key", place / "e.pub")
    assert (signed.returncode, verified.returncode) == (2, 2)
    assert "model-signature.key-unsupported" in signed.stdout + verified.stdout and not (place / "t").exists()


def test_pieces_of_files_and_other_digests_are_refused_by_name(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import model_signing as m\n"
        "how, model, key, out = sys.argv[1:]\n"
        "config = m.hashing.Config()\n"
        "config = config.use_shard_serialization() if how == 'shards' else config.use_file_serialization("
        "hashing_algorithm=how)\n"
        "m.signing.Config().use_elliptic_key_signer(private_key=Path(key)).set_hashing_config(config)"
        ".sign(Path(model), Path(out))\n"
    )
    for how in ("shards", "blake2", "blake3"):
        out = place / how
        command = [sys.executable, "-c", code, how, place / "model", place / "k.key", out]
        subprocess.run(command, check=True, capture_output=True)
        done = mint2m("verify", "checkpoint", place / "model", "--signature", out, "--key", place / "k.pub")
        assert done.returncode == 3 and "model-signature.method-unsupported" in done.stdout, done.stdout
