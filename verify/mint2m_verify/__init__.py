"""Offline verification of mint2m evidence.

This package is light: it never imports torch, ray or megatron, opens no socket, and knows nothing of the
trainer's code. What the two share are the JSON Schemas in `schemas/`.

Rooms: `canonical` strict JSON in, RFC 8785 out; `schema` JSON Schema 2020-12; `finding` findings, verdicts, reports;
`catalogue` every finding id with its explanation; `documents` typed documents; `files` and `tree` bytes on disk;
`signing`, `statement`, `anchor` trust; `run`, `receipt` what is checked, in order; `recompute` the numbers again;
`render` the report for people and machines.
"""

__version__ = "0.1.0"
