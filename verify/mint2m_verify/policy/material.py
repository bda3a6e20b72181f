"""What the package brings for writing policies: the template, and the digests of roots that others publish.

The rule: nothing here is trusted by anybody until an auditor writes it into a policy. The template is refused until its
places are filled in.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, found

_TEMPLATE = "policy-template.json"


def material_directory() -> Path:
    """Where the files lie: inside the installed package, or at the root of a source checkout."""
    here = Path(__file__).resolve().parents[1]
    packaged = here / "trust"
    return packaged if packaged.is_dir() else here.parents[1] / "trust"


def template() -> str:
    """A whole policy with places to fill in."""
    return (material_directory() / _TEMPLATE).read_text(encoding="utf-8")


def write_template(path: Path) -> None:
    """Write the template to a new file; raises `FindingError` (`file.exists`, `file.unwritable`)."""
    if path.exists() or path.is_symlink():
        raise FindingError(found("file.exists", file=str(path)))
    write_atomic(path, template().encode())
