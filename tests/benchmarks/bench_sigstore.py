"""What 1,000 certificate bundles cost in one command over 1,000 verifications by sigstore-python in one process.

    python tests/benchmarks/bench_sigstore.py [BUNDLES]

Both sides are whole processes over the same files, start-up included, measured in turn; the figure is the ratio of the
least CPU seconds of each, since a busy machine can only add to them. The library's side reads and
verifies each bundle with one `Verifier` and one policy, as a careful script would. Entries are of Rekor v1 and of v2
with timestamps, in separate rounds. Exits 1 past the limit.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mint2m_verify.signers.private_root import PrivateRoot

ROUNDS = 5
RATIO_LIMIT = 1.2
IDENTITY, ISSUER = "https://bench.invalid/sign.yml@refs/heads/main", "https://issuer.bench.invalid"

LIBRARY = """
import sys
from pathlib import Path
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier, policy
artifact, bundles, root, identity, issuer = sys.argv[1:]
verifier = Verifier(trusted_root=TrustedRoot.from_file(root))
who = policy.Identity(identity=identity, issuer=issuer)
content = Path(artifact).read_bytes()
for line in Path(bundles).read_bytes().splitlines():
    verifier.verify_artifact(content, Bundle.from_json(line), who)
"""


def seconds(command: list[str]) -> float:
    """CPU seconds of one process, user and system; raises where it fails."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{command[:6]} left with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def main(count: int) -> int:
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for log in ("v1", "v2"):
            artifact, bundles, root = folder / "artifact", folder / f"{log}.jsonl", folder / f"{log}.root.json"
            make(artifact, bundles, root, log, count)
            ours = [sys.executable, "-m", "mint2m", "verify", "signature", artifact, "--bundle", bundles]
            ours += ["--certificate-identity", IDENTITY, "--certificate-oidc-issuer", ISSUER, "--trusted-root", root]
            theirs = [sys.executable, "-c", LIBRARY, artifact, bundles, root, IDENTITY, ISSUER]
            rounds = [(seconds([*map(str, ours)]), seconds([*map(str, theirs)])) for _ in range(ROUNDS)]
            mine, library = (min(side) for side in zip(*rounds, strict=True))
            worst = max(worst, mine / library)
            print(
                f"{count} bundles, log {log}: mint2m {mine:.2f} s, sigstore-python {library:.2f} s; "
                f"ratio {mine / library:.2f} (limit {RATIO_LIMIT})"
            )
    return 0 if worst <= RATIO_LIMIT else 1


def make(artifact: Path, bundles: Path, root: Path, log: str, count: int) -> None:
    """A file, `count` bundles over it on one line each, and the root; the log grows by one for each."""

    private = PrivateRoot.create(start=datetime.now(UTC) - timedelta(days=1))
    artifact.write_bytes(os.urandom(4096))
    digest = hashlib.sha256(artifact.read_bytes()).digest()
    with bundles.open("wb") as stream:
        for _ in range(count):
            bundle = private.sign_blob(digest, IDENTITY, ISSUER, log="v2" if log == "v2" else "v1")
            stream.write(json.dumps(json.loads(bundle)).encode() + b"\n")
    root.write_bytes(private.trusted_root())


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
