"""Whose fault it is that an update cannot go on.

The rule: what the operator gave is told apart from what the update did. A snapshot without a tensor is mended by the
operator and blocks; a page that changed is no fault of any input.
"""

from __future__ import annotations


class InputError(Exception):
    """Model, adapter, rollout or profile cannot be trained on; nothing of the update was wrong."""
