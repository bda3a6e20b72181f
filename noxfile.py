"""Everything a developer, CI or a curious stranger runs: each session sets up what it needs by itself."""

from __future__ import annotations

import itertools
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "light", "tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

#: Pinned versions; a stranger's first install is the one that was tested.
CONSTRAINTS = ("-c", "constraints.txt")

#: One thread a rank: two ranks share a two-core machine, and results must not depend on a thread count.
QUIET = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@nox.session
def demo(session: nox.Session) -> None:
    """Train, sign and verify one small run on this machine."""
    session.install("-e", ".[trainer]", *CONSTRAINTS)
    output = _fresh("out", "demo")
    key = output.with_name(f"{output.name}-release")
    session.run("mint2m", "keys", "new", str(key))
    session.run("mint2m", "run", "--deployment", "local", "--key", f"{key}.key", "--output", str(output), env=QUIET)
    session.run("mint2m", "verify", "run", str(output), "--key", f"{key}.pub")


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite without its heavy cases; `nox -s tests -- -m slow` runs those."""
    session.install("-e", ".[dev]", *CONSTRAINTS)
    if session.posargs:
        session.run("pytest", *session.posargs, env=QUIET)
        return
    # Two files at a time; but what starts Ray looks at the machine's processes, and does so alone.
    alone = ("tests/trainer/cluster", "tests/trainer/hosts")
    quick, two = ("-m", "not slow", "--durations=20"), ("-n", "2", "--dist", "loadfile")
    session.run("pytest", *quick, *two, *(f"--ignore={folder}" for folder in alone), env=QUIET)
    session.run("pytest", *quick, *alone, env=QUIET)


@nox.session
def faults(session: nox.Session) -> None:
    """Every way that a run can break, each broken and cleaned up; prints the matrix (an hour, as root)."""
    session.install("-e", ".[dev]", *CONSTRAINTS)
    files = ["test_interruption", "test_operator_cluster", "test_rank_faults", "test_update_faults"]
    chosen = [*(f"tests/trainer/cluster/{name}.py" for name in files), "tests/trainer/hosts/test_host_faults.py"]
    path = {"PYTHONPATH": "tests/trainer"}
    session.run("pytest", "-p", "fault_matrix", *chosen, *session.posargs, env=QUIET | path)


@nox.session
def light(session: nox.Session) -> None:
    """An install without extras verifies, plans and examines, with no torch, ray or megatron in the environment."""
    session.install(".", "pytest", *CONSTRAINTS)
    session.run("pytest", "tests/light", env={"MINT2M_LIGHT": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install("ruff", *CONSTRAINTS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy strict over the command line and the verifier."""
    session.install(".", "mypy", "types-jsonschema", *CONSTRAINTS)
    session.run("mypy")


@nox.session
def bench(session: nox.Session) -> None:
    """Measurements, each against something measured beside it; `-- NAME` chooses some."""
    session.install("-e", ".[dev]", *CONSTRAINTS)
    chosen = session.posargs or sorted(path.stem for path in Path("tests/benchmarks").glob("bench_*.py"))
    for name in chosen:
        session.run("python", f"tests/benchmarks/{name}.py", env=QUIET)


def _fresh(parent: str, name: str) -> Path:
    """A path that does not exist yet: evidence is never overwritten."""
    candidates = (Path(parent) / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    path = next(candidate for candidate in candidates if not candidate.exists())
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
