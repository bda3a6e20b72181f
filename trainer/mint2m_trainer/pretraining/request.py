"""`mint2m model pretrain`: a small snapshot that has learned to read watch logs, written whole or not at all.

The rule: the snapshot is that of `init-tiny` with other values, so its names, shapes and shards are the same, and it
loads wherever that one does. It is trained in a process of its own with one thread: the same seed gives the same bytes
on the same machine, whatever the caller's process does beside.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file, save, save_file

from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.contract.directory import new_directory, write_synced
from mint2m_trainer.local_ranks import free_port, run_ranks
from mint2m_trainer.model.init_tiny import Json, TinyConfigError, init_tiny
from mint2m_trainer.model.snapshot import INDEX
from mint2m_trainer.pretraining.batches import Texts
from mint2m_trainer.pretraining.train import Lesson, Recipe, pretrained
from mint2m_trainer.snapshots import read_changes, refusals_found
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.tree import manifest

#: The model that is trained: two layers, each with an indexer, the second with experts; ASCII bytes.
CONFIG: Mapping[str, Json] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_topk": 128,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "indexer_types": ["full", "full"],
    "max_position_embeddings": 8192,
}

#: ASCII: what the texts are written in.
_VOCABULARY = 128

_TENSORS, _LESSONS = "tensors.safetensors", "lessons.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRequest:
    """What the operator asked for; `config` changes members of `CONFIG`."""

    output: Path
    seed: int
    steps: int
    texts: Texts
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """The snapshot's manifest, and the losses of the first and the last step."""

    manifest: FileManifest
    first: Lesson
    last: Lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    request: PretrainRequest
    folder: Path
    port: int


def pretrain(request: PretrainRequest) -> Pretrained:
    """Train and write.

    Raises:
        FindingError: `file.exists`, `input.missing`, `model.config-invalid`, `rank.*`.
    """
    changes = {**CONFIG, **read_changes(request.config)}
    with (
        refusals_found(request.output, request.config),
        new_directory(request.output) as snapshot,
        tempfile.TemporaryDirectory(prefix="mint2m-pretrain-") as folder,
    ):
        vocabulary = changes["vocab_size"]
        if not isinstance(vocabulary, int) or vocabulary < _VOCABULARY:
            expected = f"at least {_VOCABULARY}, for ASCII"
            raise TinyConfigError("/vocab_size", expected=expected, actual=repr(vocabulary))
        init_tiny(Path(folder) / "model", request.seed, changes)
        given = _Given(request=request, folder=Path(folder), port=free_port())
        run_ranks(_rank, given, world_size=1, threads=1, folder=given.folder)
        lessons = json.loads((given.folder / _LESSONS).read_text(encoding="utf-8"))
        _write(snapshot, given.folder)
    first, last = (Lesson(**lesson) for lesson in (lessons[0], lessons[-1]))
    return Pretrained(manifest=manifest("model", request.output, MODEL_TREE), first=first, last=last)


def _rank(rank: int, given: _Given) -> None:
    request, lessons = given.request, list[Lesson]()
    with told_as_rank_error(rank, "pretrain"):
        tensors = pretrained(
            given.folder / "model", request.seed, Recipe(steps=request.steps), request.texts, given.port, lessons.append
        )
        save_file(dict(tensors), given.folder / _TENSORS)
        kept = json.dumps([asdict(lesson) for lesson in lessons])
        (given.folder / _LESSONS).write_text(kept, encoding="utf-8")


def _write(snapshot: Path, folder: Path) -> None:
    """The model's files with the trained tensors in them, shard by shard."""
    model, tensors = folder / "model", load_file(folder / _TENSORS)
    shards: dict[str, list[str]] = {}
    for name, shard in json.loads((model / INDEX).read_text(encoding="utf-8"))["weight_map"].items():
        shards.setdefault(shard, []).append(name)
    for shard, names in sorted(shards.items()):
        write_synced(snapshot / shard, save({name: tensors[name] for name in names}, metadata={"format": "pt"}))
    for name in (INDEX, "config.json"):
        write_synced(snapshot / name, (model / name).read_bytes())
