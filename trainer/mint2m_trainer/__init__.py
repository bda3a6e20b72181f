"""The reference trainer: one GRPO update over a very long prompt, every stage leaving evidence.

Rooms: `model` the network from megatron-core modules and its Hugging Face names; `kernels` top-k and sparse attention;
`comm` groups, collectives and the ledger of every call; `prefix` resident pages and the exact gradient through them;
`grpo`, `scoring`, `optimizer` the update's mathematics; `update` one transaction of one rank, without Ray; `records`,
`checkpoint`, `peft` what it writes; `cluster` Ray: driver, rank actors, ownership journal, cleanup; `contract` inputs,
without torch; `run` the whole path; `parity_export` the same update for comparison.
"""
