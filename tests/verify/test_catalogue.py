"""Every finding id that code can make has an entry, and every entry explains itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mint2m_verify.catalogue import entries
from mint2m_verify.explain import explain, listing
from mint2m_verify.finding import FindingError, Verdict

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mint2m", "verify/mint2m_verify", "trainer/mint2m_trainer")


def literals(pattern: str) -> Iterator[tuple[str, str]]:
    """(id, file) of every string in the sources that has the form of an id and stands where an id stands."""
    nouns = {id.split(".")[0] for id in entries()}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob(pattern)):
            if "catalogue" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            value = argument.value
                            noun, _, fault = value.partition(".")
                            name = ast.unparse(node.func)
                            if (
                                noun in nouns
                                and fault
                                and name.split(".")[-1] in ("found", "_fault", "_plan", "refuse")
                            ):
                                yield value, str(path.relative_to(ROOT))


def test_every_id_that_code_makes_is_in_the_catalogue() -> None:
    used = list(literals("*.py"))
    assert len({id for id, _ in used}) > 100
    assert [(id, file) for id, file in used if id not in entries()] == []


def test_ids_are_a_noun_and_a_fault() -> None:
    import re

    assert [id for id in entries() if re.fullmatch(r"[a-z0-9-]+\.[a-z0-9]+(-[a-z0-9]+)*", id) is None] == []


@pytest.mark.parametrize("id", sorted(entries()))
def test_an_entry_says_more_than_its_message(id: str) -> None:
    entry = entries()[id]
    assert entry.verdict is not Verdict.ACCEPTED
    assert len(entry.explanation) > 25 and len(entry.message) > 5
    assert entry.explanation.rstrip(".") != entry.message
    assert not entry.message.endswith(".")
    assert "\x1b" not in entry.explanation
    page = explain(id)
    assert page.startswith(id) and entry.explanation in page


def test_a_mistyped_id_gets_the_near_ones() -> None:
    with pytest.raises(FindingError) as caught:
        explain("tree.file-chnged")
    assert caught.value.finding.verdict is Verdict.BLOCKED
    assert "tree.file-changed" in str(caught.value.finding.hint)


def test_the_listing_has_every_id_once() -> None:
    assert [line.split()[0] for line in listing().splitlines()] == sorted(entries())


def test_verifying_brings_neither_torch_nor_ray_nor_megatron_nor_sigstore() -> None:
    code = (
        "import sys, mint2m_verify.run, mint2m_verify.verify_tree, mint2m_verify.verify_receipt\n"
        "import mint2m_verify.sealing, mint2m_verify.explain, mint2m_verify.render\n"
        "print([m for m in ('torch', 'ray', 'megatron', 'sigstore', 'rich', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
