"""Decoding a group from resident pages against running the prefix again for each response, in one process.

    python tests/benchmarks/bench_decode.py [--prompt 8192] [--group 8] [--response 32] [--chunk 512] [--config JSON]

One rank, one thread, CPU seconds, because a shared machine only ever adds. Three ways to the same tokens: the group
together from one capture, as a training samples; each response alone after a capture of its own; and each token after a
run over the whole sequence so far, measured for one token and multiplied. Beside them stands one whole update of the
same group (capture, old scores, replays, reverse pass). Memory is what pages and responses' rows take. Exits 1 where
the three do not draw the same tokens, or where decoding together is not faster than decoding alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from one_update import free_port
from torch import Tensor
from update_inputs import make_model

from mint2m_trainer import compat, evidence
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.kernels import choose_kernels
from mint2m_trainer.model.glm import Bounds
from mint2m_trainer.model.policy import Policy, PolicySource, materialize
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout
from mint2m_trainer.prefix.session import LocalLoss, Session, page_shape
from mint2m_trainer.prefix.store import MemoryRowStore
from mint2m_trainer.sampling.continuation import ResponseRows
from mint2m_trainer.sampling.decode import Sampled
from mint2m_verify.documents.sampling import SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One policy and prompt."""

    policy: Policy
    comm: Comm
    prompt: Tensor
    chunk: int
    parameters: SamplingParameters
    seeds: tuple[int, ...]

    def session(
        self, responses: Sequence[Tensor] = (), *, prompt: Tensor | None = None, mode: str = "exact"
    ) -> Session:
        inner = self.policy.inner
        return Session(
            model=self.policy.wrapped,
            inner=inner,
            comm=self.comm,
            kernels=choose_kernels(compat.device(), inner.dtype, 128),
            layout=Layout(chunk=self.chunk, cp=1, rank=0),
            store=MemoryRowStore(page_shape(inner)),
            decisions=Decisions("store"),
            mode=mode,  # type: ignore[arg-type]
            prompt=self.prompt if prompt is None else prompt,
            responses=responses,
            weights=evidence.weights_witness(inner),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """CPU seconds of the prefix and of what came after, and what was drawn."""

    capture: float
    decode: float
    drawn: tuple[Sampled, ...]
    page_bytes: int

    @property
    def whole(self) -> float:
        """Both."""
        return self.capture + self.decode


def decoded(setting: Setting, seeds: tuple[int, ...]) -> Timed:
    """Capture once, and draw a response for each seed."""
    run = setting.session(mode="detached")
    begun = time.process_time()
    witness = run.capture()
    captured = time.process_time()
    drawn = run.sample(setting.parameters, seeds)
    done = time.process_time()
    run.close()
    return Timed(capture=captured - begun, decode=done - captured, drawn=drawn, page_bytes=witness.page_bytes)


def one_token_again(setting: Setting, response: Sampled) -> float:
    """CPU seconds for the last token of a response by a run over all that comes before it, pages made anew."""
    sequence = torch.cat([setting.prompt, torch.tensor(response.tokens[:-1], dtype=torch.int64)])
    run = setting.session([torch.tensor(response.tokens[-1:])], prompt=sequence, mode="detached")
    begun = time.process_time()
    run.capture()
    run.score(0)
    spent = time.process_time() - begun
    run.close()
    return spent


def update(setting: Setting, drawn: tuple[Sampled, ...]) -> float:
    """CPU seconds of capture, old scores, replays and reverse pass of the group."""

    def loss(logp: Tensor, local: slice) -> LocalLoss:
        return LocalLoss(total=logp.sum(), tokens=torch.zeros(logp.numel(), 1, dtype=logp.dtype))

    run = setting.session([torch.tensor(response.tokens) for response in drawn])
    begun = time.process_time()
    run.capture()
    for response in range(len(drawn)):
        run.score(response)
    for response in range(len(drawn)):
        run.replay(response, loss)
    run.reverse()
    spent = time.process_time() - begun
    run.close()
    return spent


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--response", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--config", default="{}", help="JSON object: members of the tiny model's config to change.")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    ledger = Ledger()
    comm = open_comm(
        rank=0, world_size=1, master_address="127.0.0.1", master_port=free_port(), ledger=ledger, timeout_seconds=60
    )
    try:
        with tempfile.TemporaryDirectory(prefix="mint2m-benchmark-") as place:
            snapshot, _ = make_model(Path(place), json.loads(options.config))
            return measure(comm, snapshot, options)
    finally:
        close_comm()


def measure(comm: Comm, snapshot: Path, options: argparse.Namespace) -> int:
    policy = materialize(
        PolicySource(
            snapshot=snapshot,
            adapter=None,
            families=("attention",),
            rank=4,
            alpha=8.0,
            seed=1,
            dtype="float32",
            angle_dtype="float32",
            bounds=Bounds(head_tokens=512, expert_tokens=1024),
        ),
        comm,
    )
    vocab = policy.inner.spec.vocab
    setting = Setting(
        policy=policy,
        comm=comm,
        prompt=torch.randint(0, vocab, (options.prompt,), generator=torch.Generator().manual_seed(3)),
        chunk=options.chunk,
        parameters=SamplingParameters(
            temperature=1.0, top_p=1.0, top_k=None, stop_tokens=(), max_tokens=options.response
        ),
        seeds=tuple(range(options.group)),
    )
    decoded(setting, setting.seeds[:1])  # kernels are compiled outside the measurement
    together = decoded(setting, setting.seeds)
    alone = [decoded(setting, (seed,)) for seed in setting.seeds]
    same = [response.tokens for response in together.drawn] == [one.drawn[0].tokens for one in alone]
    token = one_token_again(setting, together.drawn[0])
    trained = update(setting, together.drawn)
    tokens = options.group * options.response
    each = sum(one.whole for one in alone)
    rows = ResponseRows(
        spec=policy.inner.spec,
        responses=options.group,
        room=options.response,
        dtype=policy.inner.dtype,
        device=torch.device("cpu"),
    ).held_bytes
    print(f"P={options.prompt}, G={options.group}, R={options.response}, chunk {options.chunk}, one rank, CPU seconds")
    print(f"{'way':<44}{'prefix':>9}{'decode':>9}{'whole':>9}{'tokens/s':>10}{'MiB':>8}")
    mib = 1 / (1 << 20)
    print(
        f"{'the group together, from one capture':<44}{together.capture:>9.2f}{together.decode:>9.2f}"
        f"{together.whole:>9.2f}{tokens / together.whole:>10.1f}{(together.page_bytes + rows) * mib:>8.2f}"
    )
    captures, decodes = sum(one.capture for one in alone), sum(one.decode for one in alone)
    print(
        f"{'each response after a capture of its own':<44}{captures:>9.2f}{decodes:>9.2f}{each:>9.2f}"
        f"{tokens / each:>10.1f}{(options.group * together.page_bytes + rows) * mib:>8.2f}"
    )
    print(f"{'each token after the whole sequence (x 1)':<44}{'':>18}{token * tokens:>9.2f}{1 / token:>10.1f}")
    print(f"{'one update of the group':<44}{'':>18}{trained:>9.2f}")
    print(
        f"together is {each / together.whole:.1f} times as fast as alone, decoding only {decodes / together.decode:.1f}"
    )
    print(f"and {token * tokens / together.whole:.0f} times as fast as a run over the whole sequence for each token")
    print(f"sampling the group costs {together.whole / trained:.2f} of one update, its prefix included")
    if not same:
        print("the ways do not draw the same tokens")
    return 0 if same and each > together.whole else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
