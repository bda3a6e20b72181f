"""Digests by hand, and what must change them."""

from __future__ import annotations

import hashlib
import struct

import torch

from mint2m_trainer.evidence import peak_memory_bytes, tensors_sha256


def test_the_digest_is_a_json_line_and_the_bytes_of_each_tensor_in_order_of_name() -> None:
    by_hand = hashlib.sha256(
        b'{"dtype":"F32","name":"a","shape":[2]}\n'
        + struct.pack("<2f", 1.5, -0.0)
        + b'{"dtype":"F64","name":"b","shape":[]}\n'
        + struct.pack("<d", 2.0)
    ).hexdigest()
    tensors = {"b": torch.tensor(2.0, dtype=torch.float64), "a": torch.tensor([1.5, -0.0])}
    assert tensors_sha256(tensors) == by_hand


def test_name_type_shape_and_sign_of_zero_each_change_it() -> None:
    variants = [
        {"a": torch.zeros(2, 3)},
        {"b": torch.zeros(2, 3)},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(6)},
        {"a": torch.zeros(3, dtype=torch.float64)},
        {"a": -torch.zeros(2, 3)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(0)},
    ]
    assert len({tensors_sha256(variant) for variant in variants}) == len(variants)


def test_a_view_counts_by_its_values_and_not_by_its_storage() -> None:
    whole = torch.arange(6.0).view(2, 3)
    assert tensors_sha256({"a": whole.t()}) == tensors_sha256({"a": whole.t().contiguous()})


def test_the_high_water_mark_is_at_least_what_was_just_held() -> None:
    held = torch.ones(8 << 20)  # 32 MiB
    assert peak_memory_bytes() >= held.numel() * 4
