"""A private root behind HTTP on the loopback interface: what sigstore-python's own signing code talks to.

The services are doubles, the clients are not: certificate requests, log submissions and timestamp requests are made by
unmodified sigstore-python, and its verifier judges what comes of them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from asn1crypto import tsp
from cryptography import x509

from mint2m_verify.canonical import canonical
from mint2m_verify.signers.bundle_form import signed_bytes
from mint2m_verify.signers.private_authority import pem_of
from mint2m_verify.signers.private_log import LogVersion, SignedBy, envelope_body
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signers.private_root import _time as now

ISSUER = "https://issuer.example.org"


class Services:
    """Certificate authority, log and timestamp authority of one root; `faults` are paths that answer with an error."""

    def __init__(self, root: PrivateRoot) -> None:
        self.root = root
        self.asked: list[str] = []
        self.faults: dict[str, int] = {}
        services = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                services.asked.append(self.path)
                status = services.faults.get(self.path, 201)
                answer = b'{"message": "no"}' if status >= 400 else services.answer(self.path, raw, self.headers)
                with contextlib.suppress(ConnectionError):  # whoever asked may have lost patience
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, raw: bytes, headers: Any) -> bytes:
        match path:
            case "/api/v2/signingCert":
                return self._certificate(json.loads(raw), headers["Authorization"].removeprefix("Bearer "))
            case "/api/v1/log/entries":
                return self._entry_v1(json.loads(raw))
            case "/api/v2/log/entries":
                return self._entry_v2(json.loads(raw))
            case "/timestamp":
                request = tsp.TimeStampReq.load(raw)
                digest = request["message_imprint"]["hashed_message"].native
                return self.root.timestamps.stamp(digest, now=now(None), nonce=request["nonce"].native)
        raise AssertionError(path)

    def _certificate(self, request: Any, token: str) -> bytes:
        claims = jwt.decode(token, options={"verify_signature": False})
        csr = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"]))
        leaf = self.root.authority.issue(
            csr.public_key(),  # type: ignore[arg-type]  # a P-256 key, as sigstore-python makes them
            identity=claims["sub"],
            issuer=claims["iss"],
            now=now(None),
        )
        chain = [pem_of(leaf).decode(), pem_of(self.root.authority.certificate).decode()]
        return json.dumps({"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}).encode()

    def _entry_v1(self, proposed: Any) -> bytes:
        if proposed["kind"] == "dsse":
            content = proposed["spec"]["proposedContent"]
            envelope = json.loads(content["envelope"])
            payload, (signature,) = base64.b64decode(envelope["payload"]), envelope["signatures"]
            body = envelope_body(
                envelope,
                payload=payload,
                signed=signed_bytes(payload, envelope["payloadType"]),
                signature=base64.b64decode(signature["sig"]),
                signer=SignedBy(der=b"", pem=base64.b64decode(content["verifiers"][0]), kind="certificate"),
                version="v1",
            )
        else:
            body = {name: proposed[name] for name in ("apiVersion", "kind", "spec")}
        entry: Any = self.root.log.append(body, integrated=now(None))
        proof = entry["inclusionProof"]

        def text(value: str) -> str:
            return base64.b64decode(value).hex()

        return json.dumps(
            {
                "0" * 64: {
                    "body": entry["canonicalizedBody"],
                    "integratedTime": int(entry["integratedTime"]),
                    "logID": self.root.log.log_id.hex(),
                    "logIndex": int(entry["logIndex"]),
                    "verification": {
                        "signedEntryTimestamp": entry["inclusionPromise"]["signedEntryTimestamp"],
                        "inclusionProof": {
                            "logIndex": int(proof["logIndex"]),
                            "treeSize": int(proof["treeSize"]),
                            "rootHash": text(proof["rootHash"]),
                            "hashes": [text(sibling) for sibling in proof["hashes"]],
                            "checkpoint": proof["checkpoint"]["envelope"],
                        },
                    },
                }
            }
        ).encode()

    def _entry_v2(self, request: Any) -> bytes:
        asked = request["hashedRekordRequestV002"]
        record = {"data": {"algorithm": "SHA2_256", "digest": asked["digest"]}, "signature": asked["signature"]}
        body = {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": record}}
        return canonical(self.root.log.append(body, integrated=None))

    def configuration(self, path: Path, *, log: LogVersion) -> Path:
        """A client trust configuration that names these services and their root."""

        def service(version: int, suffix: str = "") -> Any:
            start = {"start": "2020-01-01T00:00:00Z"}
            return [
                {"url": self.url + suffix, "majorApiVersion": version, "validFor": start, "operator": "mint2m.invalid"}
            ]

        config = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": json.loads(self.root.trusted_root()),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": service(1),
                "oidcUrls": [],
                "rekorTlogUrls": service(1 if log == "v1" else 2),
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": service(1, "/timestamp"),
                "tsaConfig": {"selector": "ANY"},
            },
        }
        path.write_text(json.dumps(config))
        return path


@pytest.fixture
def services() -> Iterator[Services]:
    """A fresh root and its services, listening."""
    running = Services(PrivateRoot.create())
    thread = threading.Thread(target=running.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    thread.join()


@pytest.fixture
def identity_token(tmp_path: Path) -> Callable[..., Path]:
    """`identity_token(sub)`: a file with a token for that subject, signed by nobody whom anyone checks."""

    def make(subject: str, *, lifetime: int = 600) -> Path:
        begun = int(time.time()) - 1200 if lifetime < 0 else int(time.time())
        claims = {"iss": ISSUER, "sub": subject, "aud": "sigstore", "iat": begun, "exp": begun + abs(lifetime)}
        path = tmp_path / "token"
        path.write_text(jwt.encode(claims, "k" * 32, algorithm="HS256") + "\n")
        return path

    return make
