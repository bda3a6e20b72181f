"""`mint2m rollout check FILE`: whether an engine's export is what a trainer can take.

The rule: an export is many small claims, one for each response, and one wrong claim among ten thousand still turns an
update. So every line is read strictly and every response is looked at: tokens against the vocabulary, one finite
log-prob for each token, ended as its parameters say, drawn under the one policy and the one set of parameters that the
whole file names, and never twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.decode_audit import PROMPT_MARKERS, Audit, Decoded, audit
from mint2m_verify.documents.rollout_record import RecordedResponse, RolloutRecord
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.response_ends import end_fault
from mint2m_verify.rewards import response_text
from mint2m_verify.tree import manifest

#: An export longer than this is more than one file should hold.
FILE_LIMIT = 4 << 30

#: The tokenizer whose text can be computed again from the tokens.
BYTES = "utf8-bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller holds the export against; None where the caller has nothing of that kind.

    `most_flagged` bounds the share of responses with any one sign of the decode audit.
    """

    vocab_size: int | None = None
    revision: str | None = None
    adapter_sha256: str | None = None
    no_adapter: bool = False
    markers: tuple[str, ...] = PROMPT_MARKERS
    most_flagged: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    file: str
    record: RolloutRecord


def wanted_of(
    *,
    model: Path | None,
    revision: str | None,
    adapter: Path | None,
    no_adapter: bool,
    markers: Sequence[str],
    most_flagged: float | None,
) -> Wanted:
    """The expectations of a command line; raises `FindingError` where a named folder cannot be read."""
    for path in (model, adapter):
        if path is not None and not path.exists():
            raise FindingError(found("input.missing", file=str(path)))
    if adapter is not None and no_adapter:
        raise FindingError(found("usage.invalid", expected="--adapter or --no-adapter", actual="both"))
    return Wanted(
        vocab_size=None if model is None else read_numbers(model).vocab,
        revision=revision,
        adapter_sha256=None if adapter is None else manifest("file", adapter, "adapter").root_sha256,
        no_adapter=no_adapter,
        markers=tuple(markers) or PROMPT_MARKERS,
        most_flagged=most_flagged,
    )


def check_rollouts(path: Path, wanted: Wanted) -> Report:
    """Everything that can be said of the export at `path`.

    Raises:
        FindingError: `input.missing`, or the file cannot be read.
    """
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    log = Findings()
    lines = _read(log, path.name, read_once(path, name=path.name, limit=FILE_LIMIT))
    responses = [response for line in lines for response in line.record.responses]
    rows: tuple[tuple[str, Standing, Check], ...] = (
        ("each prompt once, and no response drawn twice", Standing.CHECKED, _once(lines)),
        ("one policy, the one that was asked for", Standing.CHECKED, _policy(lines, wanted)),
        ("one set of sampling parameters", Standing.CHECKED, _sampling(lines)),
        ("tokens of the vocabulary", Standing.CHECKED, _tokens(lines, wanted)),
        ("a log-prob for each response token", Standing.CHECKED, _logprobs(lines)),
        ("each response ended as its parameters say", Standing.CHECKED, _ends(lines)),
        ("text from the tokens", Standing.DERIVED, _texts(lines)),
    )
    for required, standing, check in rows:
        log.judge(required, standing, check)
    seen = audit((_decoded(line, response) for line in lines for response in line.record.responses), wanted.markers)
    log.judge("decode audit", Standing.DERIVED, _audited(seen, wanted, path.name))
    return Report(
        subject=str(path),
        command="rollout check",
        requirements=(
            *log.requirements,
            Requirement(
                required="responses", found=f"{len(responses)} of {len(lines)} prompts", standing=Standing.CHECKED
            ),
        ),
        findings=log.findings,
        not_checked=_not_checked(lines, wanted, seen),
    )


def _read(log: Findings, name: str, raw: bytes) -> list[_Line]:
    """Every line that is a record; a blank last line is the end of the one before it."""
    lines: list[_Line] = []
    parts = raw.split(b"\n")
    if parts[-1] == b"":
        parts.pop()

    def read() -> Check:
        if not parts:
            yield found("rollout.empty", file=name)
        for number, part in enumerate(parts, start=1):
            file = f"{name}:{number}"
            try:
                lines.append(_Line(file=file, record=RolloutRecord.parse(part, file=file, canonical_form=False)))
            except FindingError as fault:
                yield fault.finding
        return f"{len(lines)} lines"

    log.judge("every line is a record", Standing.CHECKED, read())
    return lines


def _once(lines: Sequence[_Line]) -> Check:
    requests: dict[str, str] = {}
    drawn: dict[tuple[tuple[int, ...], int], str] = {}
    equal = 0
    for line in lines:
        first = requests.setdefault(line.record.request, line.file)
        if first != line.file:
            yield _twice(line.file, "/request", f"only in {first}", line.record.request)
        seen: set[tuple[int, ...]] = set()
        for index, response in enumerate(line.record.responses):
            equal += response.tokens in seen
            seen.add(response.tokens)
            if response.seed is None:
                continue
            where = f"{line.file}/responses/{index}"
            first = drawn.setdefault((line.record.prompt_tokens, response.seed), where)
            if first != where:
                yield _twice(line.file, f"/responses/{index}/seed", f"only in {first}", str(response.seed))
    return f"{len(requests)} prompts; {equal} responses equal one before them in their group"


def _twice(file: str, pointer: str, expected: str, actual: str) -> Finding:
    return found("rollout.duplicate", file=file, pointer=pointer, expected=expected, actual=actual)


def _policy(lines: Sequence[_Line], wanted: Wanted) -> Check:
    if not lines:
        return "none"
    first = lines[0].record.policy
    revision = first.revision if wanted.revision is None else wanted.revision
    known = wanted.no_adapter or wanted.adapter_sha256 is not None
    adapter = wanted.adapter_sha256 if known else first.adapter_sha256
    for line in lines:
        policy = line.record.policy
        for member, want, have in (
            ("revision", revision, policy.revision),
            ("adapter_sha256", adapter or "null: no adapter", policy.adapter_sha256 or "null: no adapter"),
        ):
            if want != have:
                pointer = f"/policy/{member}"
                yield found("rollout.policy-mismatch", file=line.file, pointer=pointer, expected=want, actual=have)
    return f"revision {revision}, {'no adapter' if adapter is None else f'adapter {adapter[:8]}…'}"


def _sampling(lines: Sequence[_Line]) -> Check:
    if not lines:
        return "none"
    first = lines[0].record.sampling
    for line in lines:
        for member in ("temperature", "top_p", "top_k", "stop_tokens", "max_tokens"):
            want, have = getattr(first, member), getattr(line.record.sampling, member)
            if want != have:
                pointer = f"/sampling/{member}"
                expected = f"{want}, as in {lines[0].file}"
                yield found(
                    "rollout.sampling-mismatch", file=line.file, pointer=pointer, expected=expected, actual=str(have)
                )
    return (
        f"temperature {first.temperature:g}, top_p {first.top_p:g}, top_k {first.top_k or 'off'}, "
        f"at most {first.max_tokens} tokens"
    )


def _tokens(lines: Sequence[_Line], wanted: Wanted) -> Check:
    limit, count = wanted.vocab_size, 0
    for line in lines:
        sequences = [("/prompt_tokens", line.record.prompt_tokens)]
        sequences += [(f"/responses/{n}/tokens", response.tokens) for n, response in enumerate(line.record.responses)]
        for pointer, tokens in sequences:
            count += len(tokens)
            if limit is not None and max(tokens) >= limit:
                place = next(n for n, token in enumerate(tokens) if token >= limit)
                yield found(
                    "rollout.token-outside-vocabulary",
                    file=line.file,
                    pointer=f"{pointer}/{place}",
                    expected=f"less than {limit}",
                    actual=str(tokens[place]),
                )
    return f"{count} tokens" if limit is None else f"{count} tokens, all less than {limit}"


def _logprobs(lines: Sequence[_Line]) -> Check:
    """The reader has refused what is not finite already: JSON has no word for it."""
    count = 0
    for file, pointer, response in _responses(lines):
        tokens, scores = len(response.tokens), response.logprobs
        count += len(scores)
        if len(scores) != tokens:
            pointer = f"{pointer}/logprobs"
            yield found(
                "rollout.length-mismatch",
                file=file,
                pointer=pointer,
                expected=f"{tokens} entries",
                actual=str(len(scores)),
            )
        elif max(scores) > 0:
            place = next(n for n, score in enumerate(scores) if score > 0)
            pointer = f"{pointer}/logprobs/{place}"
            yield found(
                "rollout.logprob-positive", file=file, pointer=pointer, expected="at most 0", actual=repr(scores[place])
            )
    return f"{count} log-probs, finite and at most 0"


def _ends(lines: Sequence[_Line]) -> Check:
    stopped = 0
    for line in lines:
        stops, most = frozenset(line.record.sampling.stop_tokens), line.record.sampling.max_tokens
        for n, response in enumerate(line.record.responses):
            stopped += response.finish == "stop"
            fault = end_fault(response.tokens, response.finish, stops, most)
            if fault is not None:
                expected, actual, pointer = fault.expected, fault.actual, f"/responses/{n}/finish"
                yield found(
                    "rollout.finish-mismatch", file=line.file, pointer=pointer, expected=expected, actual=actual
                )
    return f"{stopped} by a stop token"


def _texts(lines: Sequence[_Line]) -> Check:
    compared = 0
    for line in lines:
        if line.record.tokenizer != BYTES:
            continue
        for n, response in enumerate(line.record.responses):
            pointer = f"/responses/{n}"
            try:
                right = response_text(response.tokens)
            except FindingError as fault:
                inner = fault.finding
                yield found(inner.id, file=line.file, pointer=pointer, expected=inner.expected, actual=inner.actual)
                continue
            if response.text is not None:
                compared += 1
                if response.text != right:
                    yield found(
                        "rollout.text-mismatch",
                        file=line.file,
                        pointer=f"{pointer}/text",
                        expected=repr(right[:80]),
                        actual=repr(response.text[:80]),
                    )
    return f"{compared} texts compared"


def _audited(seen: Audit, wanted: Wanted, file: str) -> Check:
    if wanted.most_flagged is not None:
        for name, count, whole in seen.shares():
            if whole and count > wanted.most_flagged * whole:
                expected = f"at most {wanted.most_flagged:g} of {whole} responses"
                yield found("rollout.audit-exceeded", file=file, pointer=name, expected=expected, actual=str(count))
    return ", ".join(f"{name} {count} of {whole}" for name, count, whole in seen.shares())


def _decoded(line: _Line, response: RecordedResponse) -> Decoded:
    text = response.text
    if line.record.tokenizer == BYTES and all(0 <= token <= 255 for token in response.tokens):
        text = response_text(response.tokens)  # never the engine's own word where it can be computed
    return Decoded(tokens=response.tokens, text=text, capped=response.finish == "length")


def _responses(lines: Sequence[_Line]) -> Iterator[tuple[str, str, RecordedResponse]]:
    for line in lines:
        for n, response in enumerate(line.record.responses):
            yield line.file, f"/responses/{n}", response


def _not_checked(lines: Sequence[_Line], wanted: Wanted, seen: Audit) -> tuple[str, ...]:
    missing = {
        "that the tokens are in the model's vocabulary: --model was not given": wanted.vocab_size is None,
        "that the revision is the one to be trained: --revision was not given": wanted.revision is None,
        "that the adapter is the one to be trained: --adapter was not given": wanted.adapter_sha256 is None
        and not wanted.no_adapter,
        f"the text of {seen.responses - seen.texts} responses: nobody decoded them": seen.texts < seen.responses,
        "that a text is that of its tokens, where the tokenizer is not utf8-bytes": any(
            line.record.tokenizer != BYTES for line in lines
        ),
        "that this policy gives these log-probs: the trainer's own scores show that": True,
    }
    return tuple(text for text, missed in missing.items() if missed)
