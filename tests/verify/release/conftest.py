"""The release and the kit of `tests/verify/bundle`, for the tests of how one is made."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PLACE = Path(__file__).parents[1] / "bundle" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("mint2m_test_release_fixtures", _PLACE)
assert _SPEC is not None and _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE  # dataclasses look their own module up
_SPEC.loader.exec_module(_MODULE)

kit, release = _MODULE.kit, _MODULE.release
