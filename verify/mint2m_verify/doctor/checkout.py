"""The source tree itself: schemas that are schemas, packages that are there, dependencies that are pinned."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mint2m_verify.deployment_parts import Check
from mint2m_verify.finding import Finding, found

_PACKAGES = ("mint2m", "verify/mint2m_verify", "trainer/mint2m_trainer")


def checkout_checks(root: Path) -> tuple[Check, ...]:
    """Checks of the tree at `root`, in a fixed order."""
    packages, schemas, pins = tuple(_packages(root)), tuple(_schemas(root)), tuple(_pins(root))
    count = len(list((root / "schemas").glob("*.json")))
    return (
        Check(name="packages", actual=f"{len(_PACKAGES)} packages", findings=packages),
        Check(name="schemas", actual=f"{count} schemas", findings=schemas),
        Check(name="constraints", actual="every dependency pinned", findings=pins),
    )


def _packages(root: Path) -> Iterator[Finding]:
    for package in _PACKAGES:
        if not (root / package / "__init__.py").is_file():
            yield found("checkout.package-missing", file=package)


def _schemas(root: Path) -> Iterator[Finding]:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    files = sorted((root / "schemas").glob("*.json"))
    if not files:
        yield found("checkout.schema-invalid", file="schemas", actual="no schema")
    for path in files:
        name, _, rest = path.name.partition(".v")
        want = f"urn:mint2m:schema:{name}:v{rest.removesuffix('.json')}"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            Draft202012Validator.check_schema(value)
        except (UnicodeDecodeError, json.JSONDecodeError) as fault:
            yield found("checkout.schema-invalid", file=f"schemas/{path.name}", actual=str(fault))
        except SchemaError as fault:
            yield found("checkout.schema-invalid", file=f"schemas/{path.name}", actual=fault.message)
        else:
            have = value.get("$id") if isinstance(value, dict) else None
            if have != want:
                yield found(
                    "checkout.schema-invalid",
                    file=f"schemas/{path.name}",
                    pointer="/$id",
                    expected=want,
                    actual=str(have),
                )


def _pins(root: Path) -> Iterator[Finding]:
    """Each dependency of pyproject.toml that constraints.txt does not pin with `==`."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, KeyError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        yield found("checkout.constraints-missing", file="constraints.txt", actual=str(fault))
        return
    pinned = {_name(line) for line in lines if "==" in line and not line.lstrip().startswith("#")}
    wanted = [*project.get("dependencies", ())]
    for extra in project.get("optional-dependencies", {}).values():
        wanted += extra
    for name in sorted({_name(requirement) for requirement in wanted} - {_name(project["name"])}):
        if name not in pinned:
            yield found("checkout.constraints-missing", file="constraints.txt", actual=name)


def _name(requirement: str) -> str:
    """The normalized distribution name at the start of a requirement (PEP 503)."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else ""
