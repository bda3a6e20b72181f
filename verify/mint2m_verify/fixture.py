"""Whether a training fixture, its payload and its rollout are one thing, and the thing that was asked for.

The rule: hashes first, then meaning. Payload and rollout are read once, held against the fixture's SHA-256 and byte
count, and only then parsed; then lengths, tokens, prompt text and rewards are computed again. Without the second
half a fixture could bind, correctly, a rollout whose tokens are not its text or whose rewards nobody earned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.documents import FileRef, Rollout, RunProfile, TrainingFixture, TrainingPayload
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.rewards import computable, response_text, reward


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureBytes:
    """The three files as they lie on disk, with the names that findings give them.

    `parsed_payload`, `parsed_rollout`: what these say, where somebody has parsed the bytes; both may be megabytes.
    """

    fixture: bytes
    payload: bytes
    rollout: bytes
    parsed_payload: TrainingPayload | None = None
    parsed_rollout: Rollout | None = None
    fixture_name: str = "fixture.json"
    payload_name: str = "payload.json"
    rollout_name: str = "rollout.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the caller holds the fixture against; None where the caller has nothing of that kind."""

    revision: str | None = None
    manifest_sha256: str | None = None
    profile_sha256: str | None = None
    profile: RunProfile | None = None
    vocab_size: int | None = None
    #: The adapter to be trained; None with `fresh_policy` for a new one, None without it for unknown.
    policy_sha256: str | None = None
    fresh_policy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFixture:
    """A fixture with its payload and rollout that agreed in everything `check_bytes` looks at."""

    fixture: TrainingFixture
    payload: TrainingPayload
    rollout: Rollout


def read_fixture(path: Path) -> FixtureBytes:
    """The three files, each opened once; payload and rollout from the directory of the fixture.

    Raises:
        FindingError: `file.*`, `json.*`, `schema.*` or `fixture.path-not-adjacent`.
    """
    raw = read_once(path, name=path.name)
    fixture = TrainingFixture.parse(raw, file=path.name)
    for fault in _adjacent(fixture, path.name):
        raise FindingError(fault)
    return FixtureBytes(
        fixture=raw,
        payload=read_once(path.parent / fixture.payload.path, name=fixture.payload.path),
        rollout=read_once(path.parent / fixture.rollout.path, name=fixture.rollout.path),
        fixture_name=path.name,
        payload_name=fixture.payload.path,
        rollout_name=fixture.rollout.path,
    )


def check_bytes(files: FixtureBytes, expected: Expected) -> tuple[CheckedFixture | None, tuple[Finding, ...]]:
    """All findings, and the documents where there are none.

    A file with another hash is not parsed: its content has nothing to do with this fixture.
    """
    try:
        fixture = TrainingFixture.parse(files.fixture, file=files.fixture_name)
    except FindingError as fault:
        return None, (fault.finding,)
    findings = [
        *_adjacent(fixture, files.fixture_name),
        *_bound(fixture.payload, files.payload, files.payload_name),
        *_bound(fixture.rollout, files.rollout, files.rollout_name),
        *_expected(fixture, files.fixture_name, expected),
    ]
    if any(fault.id in ("fixture.hash-mismatch", "fixture.size-mismatch") for fault in findings):
        return None, tuple(findings)
    try:
        payload = files.parsed_payload or TrainingPayload.parse(files.payload, file=files.payload_name)
        rollout = files.parsed_rollout or Rollout.parse(files.rollout, file=files.rollout_name)
    except FindingError as fault:
        return None, (*findings, fault.finding)
    checked = CheckedFixture(fixture=fixture, payload=payload, rollout=rollout)
    findings += [
        *_shape(checked, files.rollout_name),
        *_tokens(checked, files.rollout_name),
        *_prompt(checked, files.rollout_name),
        *_rewards(checked, files.rollout_name),
        *_logprobs(rollout, files.rollout_name),
        *_advantages(rollout, files.rollout_name, expected.profile),
    ]
    return (None if findings else checked), tuple(findings)


def load_fixture(path: Path, expected: Expected) -> CheckedFixture:
    """The checked fixture, or the first finding raised."""
    checked, findings = check_bytes(read_fixture(path), expected)
    if checked is None:
        raise FindingError(findings[0])
    return checked


def check_fixture(path: Path, expected: Expected) -> Report:
    """`mint2m fixture check FILE`: every fault of a fixture and of the two files beside it."""
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    checked: CheckedFixture | None = None
    try:
        checked, findings = check_bytes(read_fixture(path), expected)
    except FindingError as fault:
        findings = (fault.finding,)
    rows: tuple[Requirement, ...] = (
        Requirement(
            required="fixture, payload and rollout agree",
            found=f"{len(findings)} faults" if findings else "by SHA-256, size, shape and content",
            standing=Standing.FAILED if findings else Standing.CHECKED,
        ),
    )
    if checked is not None:
        shape = checked.fixture.shape
        lengths = ", ".join(str(length) for length in shape.response_tokens)
        rewards = ", ".join(f"{value:+g}" for value in checked.rollout.rewards)
        rows += (
            Requirement(
                required="prompt and responses",
                found=f"{shape.prompt_tokens} tokens; {lengths}",
                standing=Standing.CHECKED,
            ),
            Requirement(
                required="rewards from the text",
                found=rewards,
                standing=Standing.DERIVED if computable(checked.payload.reward_rule) else Standing.ATTESTED_ONLY,
            ),
        )
    unchecked = {
        "that the model files match the manifest the fixture names": expected.manifest_sha256 is None,
        "that the profile is the one the fixture names": expected.profile_sha256 is None,
        "that the policy adapter is the one the fixture names": not expected.fresh_policy
        and expected.policy_sha256 is None,
        "who declared that the text may be distributed": True,
    }
    return Report(
        subject=str(path),
        command="fixture check",
        requirements=rows,
        findings=findings,
        not_checked=tuple(text for text, missing in unchecked.items() if missing),
    )


def _adjacent(fixture: TrainingFixture, file: str) -> Iterator[Finding]:
    for member in ("payload", "rollout"):
        path: str = getattr(fixture, member).path
        if "/" in path or path == file:
            pointer = f"/{member}/path"
            yield found("fixture.path-not-adjacent", file=file, pointer=pointer, expected="a bare name", actual=path)


def _bound(ref: FileRef, raw: bytes, file: str) -> Iterator[Finding]:
    have = FileRef.of(ref.path, raw)
    if have.size != ref.size:
        yield found("fixture.size-mismatch", file=file, expected=f"{ref.size} bytes", actual=f"{have.size} bytes")
    if have.sha256 != ref.sha256:
        yield found("fixture.hash-mismatch", file=file, expected=ref.sha256, actual=have.sha256)


def _expected(fixture: TrainingFixture, file: str, expected: Expected) -> Iterator[Finding]:
    """The identities that the caller knows, and the lengths that the profile allows."""
    rows = [
        ("fixture.revision-mismatch", "/model/revision", expected.revision, fixture.model.revision),
        ("fixture.model-mismatch", "/model/manifest_sha256", expected.manifest_sha256, fixture.model.manifest_sha256),
        ("fixture.profile-mismatch", "/profile_sha256", expected.profile_sha256, fixture.profile_sha256),
    ]
    for id, pointer, want, have in rows:
        if want is not None and want != have:
            yield found(id, file=file, pointer=pointer, expected=want, actual=have)
    wants_policy = expected.fresh_policy or expected.policy_sha256 is not None
    if wants_policy and expected.policy_sha256 != fixture.policy_sha256:
        yield found(
            "fixture.policy-mismatch",
            file=file,
            pointer="/policy_sha256",
            expected=expected.policy_sha256 or "null: a fresh adapter",
            actual=fixture.policy_sha256 or "null: a fresh adapter",
        )
    vocabulary = fixture.shape.vocab_size
    if expected.vocab_size is not None and expected.vocab_size != vocabulary:
        yield found(
            "fixture.vocabulary-mismatch",
            file=file,
            pointer="/shape/vocab_size",
            expected=str(expected.vocab_size),
            actual=str(vocabulary),
        )
    if expected.profile is not None:
        yield from _fits(fixture, file, expected.profile)


def _fits(fixture: TrainingFixture, file: str, profile: RunProfile) -> Iterator[Finding]:
    shape, context = fixture.shape, profile.context
    if shape.prompt_tokens != context.prompt_tokens:
        want = f"{context.prompt_tokens}, from the profile"
        yield _shape_fault(file, "/shape/prompt_tokens", want, str(shape.prompt_tokens))
    if len(shape.response_tokens) != profile.group_size:
        want = f"{profile.group_size} responses, from the profile"
        yield _shape_fault(file, "/shape/response_tokens", want, str(len(shape.response_tokens)))
    for index, length in enumerate(shape.response_tokens):
        if length > context.max_response_tokens:
            want = f"at most {context.max_response_tokens}, from the profile"
            yield _shape_fault(file, f"/shape/response_tokens/{index}", want, str(length))


def _shape(checked: CheckedFixture, file: str) -> Iterator[Finding]:
    shape, rollout = checked.fixture.shape, checked.rollout
    group = len(shape.response_tokens)
    if len(rollout.prompt_tokens) != shape.prompt_tokens:
        yield _shape_fault(file, "/prompt_tokens", f"{shape.prompt_tokens} tokens", str(len(rollout.prompt_tokens)))
    for member in ("responses", "rewards", "old_logprobs", "ref_logprobs", "advantages"):
        rows = getattr(rollout, member)
        if rows is not None and len(rows) != group:
            yield _shape_fault(file, f"/{member}", f"{group} entries", str(len(rows)))
    for index, (length, tokens) in enumerate(zip(shape.response_tokens, rollout.responses, strict=False)):
        if len(tokens) != length:
            yield _shape_fault(file, f"/responses/{index}", f"{length} tokens", str(len(tokens)))
    for member in ("old_logprobs", "ref_logprobs"):
        for index, (tokens, scores) in enumerate(zip(rollout.responses, getattr(rollout, member) or (), strict=False)):
            # R - 1 entries leave the first response token unscored: the older contract.
            if len(scores) not in (len(tokens), len(tokens) - 1):
                want = f"{len(tokens)} or {len(tokens) - 1} entries"
                yield _shape_fault(file, f"/{member}/{index}", want, str(len(scores)))


def _shape_fault(file: str, pointer: str, expected: str, actual: str) -> Finding:
    return found("fixture.shape-mismatch", file=file, pointer=pointer, expected=expected, actual=actual)


def _tokens(checked: CheckedFixture, file: str) -> Iterator[Finding]:
    """The first token outside the vocabulary of each sequence; one is enough to know where to look."""
    limit = checked.fixture.shape.vocab_size
    sequences = {"/prompt_tokens": checked.rollout.prompt_tokens}
    sequences |= {f"/responses/{index}": tokens for index, tokens in enumerate(checked.rollout.responses)}
    for pointer, tokens in sequences.items():
        if max(tokens) >= limit:
            index = next(i for i, token in enumerate(tokens) if token >= limit)
            yield found(
                "fixture.token-outside-vocabulary",
                file=file,
                pointer=f"{pointer}/{index}",
                expected=f"less than {limit}",
                actual=str(tokens[index]),
            )


def _prompt(checked: CheckedFixture, file: str) -> Iterator[Finding]:
    want, have = checked.payload.prompt_text.encode("utf-8"), checked.rollout.prompt_tokens
    if len(want) != len(have):
        actual = f"{len(have)} tokens"
        yield found(
            "fixture.prompt-not-payload",
            file=file,
            pointer="/prompt_tokens",
            expected=f"{len(want)} bytes",
            actual=actual,
        )
        return
    if _as_bytes(have) != want:
        index, (byte, token) = next(
            pair for pair in enumerate(zip(want, have, strict=True)) if pair[1][0] != pair[1][1]
        )
        pointer = f"/prompt_tokens/{index}"
        yield found("fixture.prompt-not-payload", file=file, pointer=pointer, expected=str(byte), actual=str(token))


def _as_bytes(tokens: Sequence[int]) -> bytes | None:
    """The bytes that these token ids stand for; None where one stands for none."""
    try:
        return bytes(tokens)
    except ValueError:
        return None


def _rewards(checked: CheckedFixture, file: str) -> Iterator[Finding]:
    payload, rollout = checked.payload, checked.rollout
    if not computable(payload.reward_rule):
        return  # the reports say that nobody computed them here
    for index, (tokens, value) in enumerate(zip(rollout.responses, rollout.rewards, strict=False)):
        try:
            right = reward(payload.reward_rule, response_text(tokens), payload.ground_truth)
        except FindingError as fault:
            inner = fault.finding
            pointer = f"/responses/{index}"
            yield found(inner.id, file=file, pointer=pointer, expected=inner.expected, actual=inner.actual)
            continue
        if value != right:
            pointer = f"/rewards/{index}"
            yield found("fixture.reward-mismatch", file=file, pointer=pointer, expected=str(right), actual=str(value))


def _advantages(rollout: Rollout, file: str, profile: RunProfile | None) -> Iterator[Finding]:
    """One for each token where the profile takes them from the rollout, and none where it does not.

    Advantages that nobody asked for would be a second opinion on what the update should do, one of them unread.
    """
    for index, (tokens, values) in enumerate(zip(rollout.responses, rollout.advantages or (), strict=False)):
        if len(values) != len(tokens):
            yield _shape_fault(file, f"/advantages/{index}", f"{len(tokens)} entries", str(len(values)))
    if profile is None:
        return
    wanted = profile.grpo.advantage_source == "rollout"
    if wanted and rollout.advantages is None:
        expected = "an advantage for each token, since the profile takes them from the rollout"
        yield found("fixture.advantages-missing", file=file, pointer="/advantages", expected=expected, actual="none")
    if not wanted and rollout.advantages is not None:
        expected = "none, since the profile's follow from the rewards"
        yield found(
            "fixture.advantages-not-permitted", file=file, pointer="/advantages", expected=expected, actual="present"
        )


def _logprobs(rollout: Rollout, file: str) -> Iterator[Finding]:
    for member in ("old_logprobs", "ref_logprobs"):
        for row, scores in enumerate(getattr(rollout, member) or ()):
            for index, score in enumerate(scores):
                if score > 0:
                    pointer = f"/{member}/{row}/{index}"
                    yield found(
                        "fixture.logprob-positive", file=file, pointer=pointer, expected="at most 0", actual=str(score)
                    )
                    break
