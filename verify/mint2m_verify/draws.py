"""The random numbers of sampling, as functions of recorded seeds, the same on every machine and for ever.

The rule: the number that draws token `t` of a response depends on the response's seed and on `t` alone, and the
response's seed on the training's seed and on where the response stands in it. So a response can be drawn again by
itself, on any number of ranks, and an auditor can say which seed each response had to have before it was drawn.

    seed of a response   first 53 bits of SHA-256("mint2m.response-seed/v1\\n{seed}\\n{step}\\n{attempt}\\n{response}")
    number of token t    first 53 bits of SHA-256("mint2m.draw/v1\\n{response seed}\\n{t}"), over 2^53

Numbers are in decimal; 53 bits are what a double and a JSON integer hold.
"""

from __future__ import annotations

import hashlib

_BITS = 53


def response_seed(seed: int, *, step: int, attempt: int, response: int) -> int:
    """The seed of one response; step, attempt and response count from 0."""
    return _bits(f"mint2m.response-seed/v1\n{seed}\n{step}\n{attempt}\n{response}")


def uniform(seed: int, token: int) -> float:
    """The number in [0, 1) that draws token `token` of the response with this seed."""
    return float(_bits(f"mint2m.draw/v1\n{seed}\n{token}")) / float(1 << _BITS)


def _bits(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big") >> (64 - _BITS)
