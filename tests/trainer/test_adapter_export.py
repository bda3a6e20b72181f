"""`model export-adapter`: what it writes loads elsewhere and is the same function; what it cannot read it refuses."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mint2m.__main__ import run as command_line
from mint2m_trainer.peft import read_adapter

WEIGHTS = "adapter_model.safetensors"


def test_the_fused_export_of_a_command_gives_the_logits_of_the_merged_weights(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    """The merged weights are W + alpha / r * B A by hand, put into transformers' own fused parameters."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    folder = shared("oracle") / "yarn"
    done = command_line(
        ["model", "export-adapter", str(folder / "adapter"), "--fused", "--output", str(tmp_path / "fused")]
    )
    assert done.verdict == 0, done.text
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = transformers.GlmMoeDsaForCausalLM.from_pretrained(folder / "snapshot", **options)
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "fused").eval()
    merged = transformers.GlmMoeDsaForCausalLM.from_pretrained(folder / "snapshot", **options).eval()
    merge_by_hand(merged, folder / "adapter")
    tokens = torch.tensor([json.loads((folder / "rollout.json").read_text())["prompt_tokens"][:48]])
    with torch.no_grad():
        ours, right = (model(tokens, use_cache=False).logits for model in (adapted, merged))
        plain = transformers.GlmMoeDsaForCausalLM.from_pretrained(folder / "snapshot", **options).eval()
        without = plain(tokens, use_cache=False).logits
    torch.testing.assert_close(ours, right, rtol=0, atol=2e-4)
    assert (without - right).abs().max() > 0.05, "the adapter does something"


@torch.no_grad()
def merge_by_hand(model: torch.nn.Module, adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    parameters = dict(model.named_parameters())
    for name in sorted(name for name in tensors if name.endswith("lora_A.weight")):
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        delta = scale * tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
        block, _, rest = module.partition(".mlp.experts.")
        if not rest:
            parameters[f"{module}.weight"] += delta
            continue
        expert, projection = rest.split(".")
        fused = f"{block}.mlp.experts."
        if projection == "down_proj":
            parameters[f"{fused}down_proj"][int(expert)] += delta
            continue
        half = delta.shape[0]
        start = 0 if projection == "gate_proj" else half
        parameters[f"{fused}gate_up_proj"][int(expert), start : start + half] += delta


def test_the_canonical_export_holds_the_same_bits(shared: Callable[[str], Path], tmp_path: Path) -> None:
    source = shared("oracle") / "indexshare" / "adapter"
    done = command_line(["model", "export-adapter", str(source), "--output", str(tmp_path / "again")])
    assert done.verdict == 0, done.text
    left, right = read_adapter(source), read_adapter(tmp_path / "again")
    assert (left.rank, left.alpha) == (right.rank, right.alpha)
    assert left.tensors.keys() == right.tensors.keys()
    assert all(torch.equal(left.tensors[name], right.tensors[name]) for name in left.tensors)


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [("no directory", "input.missing"), ("no weights", "input.missing"), ("NaN", "adapter.malformed"),
     ("dropout", "adapter.malformed"), ("an expert", "adapter.malformed"), ("output there", "file.exists")],
)  # fmt: skip
def test_what_cannot_be_written_whole_is_refused_and_nothing_is_left(
    shared: Callable[[str], Path], tmp_path: Path, spoil: str, finding: str
) -> None:
    source, output = tmp_path / "adapter", tmp_path / "out"
    shutil.copytree(shared("oracle") / "yarn" / "adapter", source, copy_function=shutil.copyfile)
    tensors = load_file(source / WEIGHTS)
    match spoil:
        case "no directory":
            shutil.rmtree(source)
        case "no weights":
            (source / WEIGHTS).unlink()
        case "NaN":
            next(iter(tensors.values()))[0, 0] = float("nan")
            save_file(tensors, source / WEIGHTS)
        case "dropout":
            config = json.loads((source / "adapter_config.json").read_text())
            (source / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.1}))
        case "an expert":
            kept = {name: tensor for name, tensor in tensors.items() if "experts.1.up_proj" not in name}
            save_file(kept, source / WEIGHTS)
        case "output there":
            output.mkdir()
            (output / "mine").write_text("keep")
    done = command_line(["model", "export-adapter", str(source), "--fused", "--output", str(output)])
    assert finding in done.text
    assert done.verdict == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == (
        ["out"] if spoil == "output there" else []
    )
