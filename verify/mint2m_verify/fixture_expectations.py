"""What a caller of `mint2m fixture check` holds a fixture against, from the files on the command line."""

from __future__ import annotations

from pathlib import Path

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import RunProfile
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.fixture import Expected
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.tree import manifest


def expected_of(*, model: Path | None, revision: str | None, profile: Path | None, adapter: Path | None) -> Expected:
    """The expectations; each None expects nothing. Raises `FindingError` where a named file cannot be read."""
    for path in (model, profile, adapter):
        if path is not None and not path.exists():
            raise FindingError(found("input.missing", file=str(path)))
    raw = None if profile is None else read_once(profile.resolve(), name=str(profile))
    return Expected(
        revision=revision,
        manifest_sha256=None if model is None else manifest("model", model, MODEL_TREE).sha256,
        profile_sha256=None if raw is None else sha256_hex(raw),
        profile=None if raw is None else RunProfile.parse(raw, file=str(profile), canonical_form=False),
        vocab_size=None if model is None else read_numbers(model).vocab,
        policy_sha256=None if adapter is None else manifest("file", adapter, "adapter").root_sha256,
    )
