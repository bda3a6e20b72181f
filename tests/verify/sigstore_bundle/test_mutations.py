"""Every value in a valid bundle, deleted, nulled, retyped, flipped, cut and extended: refused, or a hint by name.

`HINTS` is the whole list of what nobody signs and nothing here depends on. A mutant that is accepted must differ from
its bundle in nothing but one of these, and what is established about it must be what was established about the bundle,
to the letter. `WITNESSES` may be taken away where something else still carries the signature; then the verdict states
that they are gone. No mutant makes anything raise. The seed is fixed; the sampled run is part of the usual suite, the
whole one is `slow`.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mint2m_verify.finding import FindingError
from mint2m_verify.signing import load_public_key
from mint2m_verify.sigstore_bundle import (
    Artifact,
    Result,
    TrustRoot,
    Verified,
    load_root,
    packaged_root,
    parse_root,
    read_bundle,
    verify_bundle,
)

#: Places whose value is an unauthenticated hint, with what may be done to them.
HINTS: tuple[tuple[str, str], ...] = (
    # The format calls it a hint: it is compared where the artifact is known, and its absence says nothing.
    (r"messageSignature/messageDigest", "delete"),
    # DSSE calls it a hint: which key to try. The certificate, or the auditor's key, is tried whatever it says.
    (r"dsseEnvelope/signatures/0/keyid", "any text"),
    # Which key to try; one that names none of the auditor's is refused, none at all tries each of them.
    (r"verificationMaterial/publicKey(/hint)?", "no hint"),
    # Cosignatures of witnesses in a checkpoint: the trusted root names no witness that could have made them.
    (r"verificationMaterial/tlogEntries/0/inclusionProof/checkpoint/envelope", "another cosignature"),
    # A timestamp token's name of its signature algorithm: the key and the signed attributes decide.
    (
        r"verificationMaterial/timestampVerificationData/rfc3161Timestamps/0/signedTimestamp",
        "another algorithm name",
    ),
    # An empty list and no list are one thing.
    (r"verificationMaterial/(tlogEntries|timestampVerificationData(/rfc3161Timestamps)?)", "empty or absent"),
)

#: Places whose loss is a loss of evidence, which `Verified` must then not claim.
WITNESSES = re.compile(r"verificationMaterial/(tlogEntries(/0)?|timestampVerificationData(/rfc3161Timestamps(/0)?)?)")

Path_ = tuple[str | int, ...]
REMOVED = object()


@dataclass(frozen=True, kw_only=True)
class Base:
    name: str
    document: dict[str, Any]
    root: TrustRoot | None
    keys: tuple[Any, ...]
    artifact: Artifact


def verdict(base: Base, document: Any) -> Result:
    """The result, or the finding of a reader as a result; anything else that is raised is a leak and fails the test."""
    raw = json.dumps(document).encode("utf-8", "surrogatepass")
    try:
        bundle = read_bundle(raw, file="bundle")
    except FindingError as fault:
        return Result(verified=None, findings=(fault.finding,))
    return verify_bundle(bundle, root=base.root, keys=base.keys, artifact=base.artifact)


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inner:
        yield from places(item, (*path, step))


def mutations(value: Any, chance: random.Random) -> Iterator[Any]:
    yield from (REMOVED, None, 7, 1.5, True, "x", "", [], {})
    if isinstance(value, str) and value:
        for _ in range(4):
            at = chance.randrange(len(value))
            yield value[:at] + chr(ord(value[at]) ^ (1 << chance.randrange(7))) + value[at + 1 :]
        yield value[:-1]
        yield value + chance.choice("A0=\n ")
        yield from _of_bytes(value, chance)
    if isinstance(value, list) and value:
        yield value + value
        yield [*value, value[0]]
    if isinstance(value, dict):
        yield {**value, "extra": 1}


def _of_bytes(text: str, chance: random.Random) -> Iterator[str]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return
    if len(raw) < 9:
        return
    changed = [raw[:-1], raw + b"\0", raw[1:], raw[: len(raw) // 2]]
    for _ in range(min(max(8, len(raw) // 24), 60)):
        bits = bytearray(raw)
        bits[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        changed.append(bytes(bits))
    yield from (base64.b64encode(item).decode() for item in changed)


def mutants(document: Any, chance: random.Random) -> Iterator[tuple[Path_, Any]]:
    for path in places(document):
        old = document
        for step in path:
            old = old[step]
        for new in mutations(old, chance):
            if new is not REMOVED and type(new) is type(old) and new == old:
                continue
            mutant = copy.deepcopy(document)
            place = mutant
            for step in path[:-1]:
                place = place[step]
            if new is REMOVED:
                del place[path[-1]]
            else:
                place[path[-1]] = new
            yield path, mutant


def established(verified: Verified) -> tuple[Any, ...]:
    return (
        verified.signer,
        verified.times,
        verified.logged,
        verified.timestamped,
        verified.root_sha256,
        verified.payload,
        verified.payload_type,
        verified.statement,
        verified.bundle.signature,
    )


def may_be_accepted(path: Path_, before: Verified, after: Verified) -> bool:
    """Whether an accepted mutant only lost a hint, or lost a witness and says so."""
    place = "/".join(map(str, path))
    if any(re.fullmatch(pattern, place) for pattern, _ in HINTS) and established(after) == established(before):
        return True
    return (
        WITNESSES.fullmatch(place) is not None
        and (after.signer, after.payload, after.statement) == (before.signer, before.payload, before.statement)
        and set(after.times) <= set(before.times)
        and (after.logged, after.timestamped) != (before.logged, before.timestamped)
        and (before.logged, before.timestamped) >= (after.logged, after.timestamped)
    )


def judged(base: Base, *, sample: int, chance: random.Random) -> tuple[int, list[str]]:
    """How many mutants of `base` were tried, one of `sample`, and the places of those wrongly accepted."""
    before = verdict(base, base.document).verified
    assert before is not None, base.name
    tried, wrong = 0, []
    for number, (path, mutant) in enumerate(mutants(base.document, chance)):
        if number % sample:
            continue
        tried += 1
        result = verdict(base, mutant)
        assert (result.verified is None) == bool(result.findings)
        if result.verified is not None and not may_be_accepted(path, before, result.verified):
            wrong.append(f"{base.name}: {'/'.join(map(str, path))}")
    return tried, wrong


def private_bases(kit: Any) -> list[Base]:
    """The four combinations of content and log, keys alone, and keys with each log."""
    root = parse_root(kit.private.trusted_root(), name="root")
    about = Artifact.of(kit.content, name=kit.name)
    keys = (kit.key.public_key(),)
    made = [
        (f"{maker}-{log}", getattr(kit, maker)(log), root, ()) for maker in ("blob", "dsse") for log in ("v1", "v2")
    ]
    plain = {"key-blob": kit.by_key(), "key-dsse": kit.by_key(payload=kit.statement())}
    made += [(name, bundle, None, keys) for name, bundle in plain.items()]
    made += [
        (f"{name}-{log}", kit.witnessed(bundle, log), root, keys)
        for name, bundle in plain.items()
        for log in ("v1", "v2")
    ]
    return [Base(name=name, document=bundle, root=root, keys=keys, artifact=about) for name, bundle, root, keys in made]


def conformance_bases(suite: Path) -> list[Base]:
    """Every bundle of the suite that must verify."""
    bases = []
    for case in sorted(place for place in suite.iterdir() if place.is_dir() and not place.name.endswith("_fail")):
        own, key = case / "trusted_root.json", case / "key.pub"
        artifact = case / "artifact" if (case / "artifact").exists() else suite / "a.txt"
        bases.append(
            Base(
                name=case.name,
                document=json.loads((case / "bundle.sigstore.json").read_bytes()),
                root=load_root(own) if own.exists() else packaged_root("public-good"),
                keys=(load_public_key(key),) if key.exists() else (),
                artifact=Artifact.of(artifact.read_bytes()),
            )
        )
    return bases


def test_of_mutated_bundles_only_hints_are_accepted_and_nothing_raises(kit: Any) -> None:
    chance = random.Random(20260601)
    outcomes = [judged(base, sample=4, chance=chance) for base in private_bases(kit)]
    assert [place for _, wrong in outcomes for place in wrong] == []
    assert sum(tried for tried, _ in outcomes) > 1000


@pytest.mark.slow
def test_of_all_mutated_bundles_only_hints_are_accepted_and_nothing_raises(
    kit: Any, shared: Callable[[str], Path]
) -> None:
    chance = random.Random(20260602)
    bases = [*private_bases(kit), *conformance_bases(shared("conformance") / "bundle-verify")]
    outcomes = [judged(base, sample=1, chance=chance) for base in bases]
    assert [place for _, wrong in outcomes for place in wrong] == []
    assert sum(tried for tried, _ in outcomes) >= 20_000


def test_a_changed_signature_algorithm_name_in_a_token_is_all_that_bit_flips_may_change(kit: Any) -> None:
    """Every bit of a timestamp token, one at a time: what is accepted lies in those eight bytes."""
    base = next(base for base in private_bases(kit) if base.name == "key-blob-v2")
    material = base.document["verificationMaterial"]
    token = base64.b64decode(material["timestampVerificationData"]["rfc3161Timestamps"][0]["signedTimestamp"])
    name = bytes.fromhex("2a8648ce3d040302")  # ecdsa-with-SHA256
    first = token.rindex(name)
    accepted = set()
    for at in range(len(token)):
        bits = bytearray(token)
        bits[at] ^= 1 << (at % 8)
        stamps = {"rfc3161Timestamps": [{"signedTimestamp": base64.b64encode(bytes(bits)).decode()}]}
        mutant = {**base.document, "verificationMaterial": {**material, "timestampVerificationData": stamps}}
        if verdict(base, mutant).verified is not None:
            accepted.add(at)
    assert accepted <= set(range(first, first + len(name)))


#: Names for people in a trusted root, which decide nothing. A window may move as long as it still holds the time.
ROOT_NAMES = re.compile(r"(tlogs|ctlogs)/0/baseUrl|(certificateAuthorities|timestampAuthorities)/0/(uri|subject/.*)")


def _says_only_another_issuer(root: TrustRoot) -> bool:
    """The top of a chain is believed for its name and key; who issued it, if not itself, is nowhere looked at."""
    tops = (root.authorities[0].chain[-1], root.timestamp_authorities[0].chain[-1])
    return any(top.issuer != top.subject for top in map(x509.load_der_x509_certificate, tops))


ROOT_WINDOWS = re.compile(r".*/validFor/start")


def test_of_mutated_roots_only_names_and_wider_windows_still_verify_and_nothing_raises(kit: Any) -> None:
    """The bundle needs every part of the root: authority, certificate log, transparency log, timestamp authority."""
    raw = json.dumps(kit.blob("v1", timestamp=True)).encode()
    document = kit.root
    about = Artifact.of(kit.content)
    tried, wrong = 0, []
    for path, mutant in mutants(document, random.Random(20260603)):
        place = "/".join(map(str, path))
        tried += 1
        try:
            root = parse_root(json.dumps(mutant).encode("utf-8", "surrogatepass"), name="root")
        except FindingError as fault:
            assert fault.finding.id == "sigstore.root-invalid"
            continue
        result = verify_bundle(read_bundle(raw, file="bundle"), root=root, artifact=about)
        if result.verified is None or ROOT_NAMES.fullmatch(place) or ROOT_WINDOWS.fullmatch(place):
            continue
        if not _says_only_another_issuer(root):
            wrong.append(place)
    assert wrong == []
    assert tried > 600
