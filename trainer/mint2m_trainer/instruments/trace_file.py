"""A rank's trace as a file of JSON, written whole, read strictly.

The rule: what is read is what was written, to the last bit of every number. A trace is an instrument's output for
people who look for a fault; it is no evidence and no document of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.trace import KINDS, Kind, RankTrace, TracePoint
from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.files import read_once, write_atomic

FORMAT = "layer-trace/1"


def trace_name(rank: int) -> str:
    """File name of a rank's trace."""
    return f"trace-{rank:04d}.json"


def write_trace(directory: Path, trace: RankTrace) -> Path:
    """Write one rank's trace into a directory that all ranks may share; raises `FindingError` (`file.unwritable`)."""
    points: list[JsonValue] = [
        {
            "phase": point.phase,
            "turn": point.turn,
            "chunk": point.chunk,
            "layer": point.layer,
            "kind": point.kind,
            "positions": list(point.positions),
            "values": [list(values) for values in point.values],
        }
        for point in trace.points
    ]
    path = directory / trace_name(trace.rank)
    value: JsonValue = {
        "format": FORMAT,
        "rank": trace.rank,
        "world_size": trace.world_size,
        "stride": trace.stride,
        "points": points,
    }
    write_atomic(path, canonical(value))
    return path


def read_traces(directory: Path) -> Sequence[RankTrace]:
    """All ranks' traces of a run.

    Raises:
        InstrumentError: there is none, or a file is not a trace.
        FindingError: `file.*`, `json.*`.
    """
    paths = sorted(directory.glob("trace-*.json"))
    if not paths:
        raise InstrumentError(f"{directory} holds no trace")
    return [_trace(path) for path in paths]


def _trace(path: Path) -> RankTrace:
    value = parse(read_once(path), file=path.name, canonical_form=True)
    names = {"format", "rank", "world_size", "stride", "points"}
    if not isinstance(value, dict) or set(value) != names or value["format"] != FORMAT:
        raise InstrumentError(f"{path.name} is not a {FORMAT}")
    points = value["points"]
    if not isinstance(points, list):
        raise InstrumentError(f"{path.name}: points are a list")
    return RankTrace(
        rank=_integer(value["rank"], path, "rank"),
        world_size=_integer(value["world_size"], path, "world_size"),
        stride=_integer(value["stride"], path, "stride"),
        points=tuple(_point(point, path) for point in points),
    )


def _point(value: JsonValue, path: Path) -> TracePoint:
    names = {"phase", "turn", "chunk", "layer", "kind", "positions", "values"}
    if not isinstance(value, dict) or set(value) != names or value["kind"] not in KINDS:
        raise InstrumentError(f"{path.name}: a point has {sorted(names)}")
    positions, values = value["positions"], value["values"]
    if not isinstance(positions, list) or not isinstance(values, list) or len(positions) != len(values):
        raise InstrumentError(f"{path.name}: as many positions as values")
    return TracePoint(
        phase=str(value["phase"]),
        turn=_integer(value["turn"], path, "turn"),
        chunk=_integer(value["chunk"], path, "chunk"),
        layer=_integer(value["layer"], path, "layer"),
        kind=cast(Kind, value["kind"]),
        positions=tuple(_integer(position, path, "position") for position in positions),
        values=tuple(_numbers(numbers, path) for numbers in values),
    )


def _integer(value: JsonValue, path: Path, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InstrumentError(f"{path.name}: {name} is an integer, not {value!r}")
    return value


def _numbers(value: JsonValue, path: Path) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise InstrumentError(f"{path.name}: values are lists of numbers")
    numbers = []
    for number in value:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise InstrumentError(f"{path.name}: {number!r} is not a number")
        numbers.append(float(number))
    return tuple(numbers)
