"""Findings about two gradients, their scores and their losses that should be the same."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="parity.trace-diverged",
        verdict=Verdict.FAILED,
        message="the two runs part in this layer",
        explanation=(
            "Both runs were traced layer by layer. This is the first place, in the order of cause, where a token's hidden state\n"
            "differs by more than the bound, or where other rows or experts were chosen: the lowest layer of the first phase, and in\n"
            "it selection before experts before the hidden state. Look at this layer's weights on the ranks that are named; what\n"
            "lies above it follows."
        ),
    ),
    Entry(
        id="parity.trace-invalid",
        verdict=Verdict.BLOCKED,
        message="the traces cannot be laid beside each other",
        explanation=(
            "A directory holds no trace, a file is not one, a rank is missing, strides differ, or the runs have no token in common.\n"
            "Name two directories that `mint2m run --instruments` wrote."
        ),
    ),
    Entry(
        id="parity.no-overlap",
        verdict=Verdict.FAILED,
        message="the two sides have no gradient tensor in common",
        explanation=(
            "Nothing was compared, so nothing agrees. The sides name their tensors differently, or one of them is empty.\n"
            "Names are PEFT's: `base_model.model.<module>.lora_A.weight` and `lora_B.weight`."
        ),
    ),
    Entry(
        id="parity.no-signal",
        verdict=Verdict.FAILED,
        message="the reference gradient is zero everywhere",
        explanation=(
            "Two zero gradients always agree. A group whose advantages are all zero has no signal and shows nothing about\n"
            "correctness; compare on a group with different rewards."
        ),
    ),
    Entry(
        id="parity.missing-tensor",
        verdict=Verdict.FAILED,
        message="the candidate lacks a gradient that the reference has",
        explanation=(
            "Every trainable tensor of the reference must be there, also where its gradient is zero. A gradient that is\n"
            "absent was not computed, or was written under another name."
        ),
    ),
    Entry(
        id="parity.extra-tensor",
        verdict=Verdict.FAILED,
        message="the candidate has a gradient that the reference lacks",
        explanation="The two sides do not train the same parameters, so their norms and steps cannot be compared.",
    ),
    Entry(
        id="parity.name-unknown",
        verdict=Verdict.FAILED,
        message="a tensor's name belongs to no family",
        explanation=(
            "Families are attention, dense, shared, expert and unembed, told from the PEFT name. A tensor outside all of them\n"
            "would be left out of every family's figure, so it is refused."
        ),
    ),
    Entry(
        id="parity.shape-mismatch",
        verdict=Verdict.FAILED,
        message="a tensor or a list of log-probs has another shape on the other side",
        explanation="The two sides are not the same computation: another rank, another model, or other responses.",
    ),
    Entry(
        id="parity.not-finite",
        verdict=Verdict.FAILED,
        message="a value is NaN or infinite",
        explanation=(
            "Comparisons with NaN are false both ways, so a NaN would pass a careless gate. Neither side may hold one. Look\n"
            "for the first layer whose output is not finite."
        ),
    ),
    Entry(
        id="parity.threshold-exceeded",
        verdict=Verdict.FAILED,
        message="the difference is larger than the threshold",
        explanation=(
            "The two sides do not agree to the required accuracy. The figures by family tell where to look: attention alone\n"
            "points at positions or selection, expert alone at routing, everything by one factor at the loss weights.\n"
            "A cosine below 1 with equal log-probs and loss is what a detached prefix looks like."
        ),
    ),
    Entry(
        id="parity.zero-mask-mismatch",
        verdict=Verdict.FAILED,
        message="values that are exactly zero on one side are not zero on the other",
        explanation=(
            "An exact zero means that nothing flowed: an expert without tokens, a projection that was not used. Where only\n"
            "one side has it, the two sides routed or selected differently. Elements below 2^-23 of their tensor's largest (2^-52\n"
            "where both sides are float64) do not count: rounding alone can leave those."
        ),
    ),
    Entry(
        id="parity.clip-count-mismatch",
        verdict=Verdict.FAILED,
        message="the two sides clipped a different number of tokens",
        explanation="The clip decides which tokens have a policy gradient. Counts are whole numbers and must be equal.",
    ),
    Entry(
        id="parity.case-unknown",
        verdict=Verdict.BLOCKED,
        message="the reference has no such case",
        explanation="A reference folder holds several cases by label; name one of them with `--case`.",
    ),
    Entry(
        id="parity.malformed",
        verdict=Verdict.FAILED,
        message="a file of the comparison cannot be read as what it should be",
        explanation=(
            "A side is a directory with `gradients.safetensors`, `logprobs.json` and `report.json`, or a reference folder with\n"
            "`expected.safetensors` and `expected.json`. One of these is damaged, or lacks a member."
        ),
    ),
)
