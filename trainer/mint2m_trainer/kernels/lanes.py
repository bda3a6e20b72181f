"""Eight float32 lanes: the few vector loops that the CPU kernels stand on, written as LLVM vectors.

The rule: the value of an element never depends on which lane, tile or remainder computed it. Each is a chain of IEEE
multiplications and additions in ascending order, never contracted to fused multiply-adds and never re-associated, so
the same bits come out on every processor and equal `torch.mul` followed by `torch.add`. The loop vectorizer would
vectorize a sum only with fast-math, and then the remainder of a loop rounds otherwise than its body.

Arrays are flat, contiguous and float32; `at` arguments are offsets and `step` arguments row strides, in elements.
Nothing here checks bounds: callers own every buffer and pad it to whole vectors.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Lanes of a vector; rows and columns of the block of sums that stays in registers.
LANES = 8
PANEL_ROWS = 4
PANEL_COLUMNS = 2 * LANES

_F32 = ir.FloatType()
_I64 = ir.IntType(64)
_I32 = ir.IntType(32)
_VECTOR = ir.VectorType(_F32, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_FLAT = types.Array(types.float32, 1, "C")
_TABLE = types.Array(types.uint64, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C")
_N = types.int64
_PANEL = (_FLAT, _N, _N, _FLAT, _N, _N, _N, _FLAT, _N, _N, _N)


class _Finish(enum.Enum):
    """What happens to a whole sum."""

    SET = enum.auto()  # C = sum
    ADD = enum.auto()  # C = C + first term + second term …: the sum starts from C
    SCORE_FIRST = enum.auto()  # C = 0 + w_i relu(sum)
    SCORE_NEXT = enum.auto()  # C = C + w_i relu(sum)


@intrinsic
def panel_set(typing, a, a_at, a_step, b, b_at, b_step, depth, c, c_at, c_step, width):  # type: ignore[no-untyped-def]
    """C = A B: A [4, depth], B [depth, width], C [4, width]; `width` a multiple of 16, `depth` terms ascending."""
    return types.void(*_PANEL), _panel(_Finish.SET)


@intrinsic
def panel_add(typing, a, a_at, a_step, b, b_at, b_step, depth, c, c_at, c_step, width):  # type: ignore[no-untyped-def]
    """C += A B, term after term onto what C held."""
    return types.void(*_PANEL), _panel(_Finish.ADD)


@intrinsic
def score_first(typing, a, a_at, a_step, b, b_at, b_step, depth, c, c_at, c_step, width, w, w_at, w_step):  # type: ignore[no-untyped-def]
    """C[i] = 0 + w[i] relu((A B)[i]); relu keeps NaN."""
    return types.void(*_PANEL, _FLAT, _N, _N), _panel(_Finish.SCORE_FIRST)


@intrinsic
def score_next(typing, a, a_at, a_step, b, b_at, b_step, depth, c, c_at, c_step, width, w, w_at, w_step):  # type: ignore[no-untyped-def]
    """C[i] += w[i] relu((A B)[i]); relu keeps NaN."""
    return types.void(*_PANEL, _FLAT, _N, _N), _panel(_Finish.SCORE_NEXT)


@intrinsic
def transpose8(typing, source, source_at, source_step, out, out_at, out_step):  # type: ignore[no-untyped-def]
    """out[j, i] = source[i, j] for an 8 by 8 block."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        source_at, source_step, out_at, out_step = args[1], args[2], args[4], args[5]
        source = _pointer(context, builder, signature.args[0], args[0])
        out = _pointer(context, builder, signature.args[3], args[3])
        rows = [_load(builder, source, _row(builder, source_at, source_step, i)) for i in range(LANES)]
        pairs = [(rows[i], rows[i + 1]) for i in range(0, LANES, 2)]
        low = [_shuffle(builder, a, b, [0, 8, 1, 9, 4, 12, 5, 13]) for a, b in pairs]
        high = [_shuffle(builder, a, b, [2, 10, 3, 11, 6, 14, 7, 15]) for a, b in pairs]
        quads = []  # four columns of four rows, for rows 0-3 and then 4-7
        for first in (0, 2):
            for part in (low, high):
                for mask in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]):
                    quads.append(_shuffle(builder, part[first], part[first + 1], mask))
        for column in range(LANES):
            mask = [0, 1, 2, 3, 8, 9, 10, 11] if column < 4 else [4, 5, 6, 7, 12, 13, 14, 15]
            value = _shuffle(builder, quads[column % 4], quads[4 + column % 4], mask)
            _store(builder, value, out, _row(builder, out_at, out_step, column))
        return context.get_dummy_value()

    return types.void(_FLAT, _N, _N, _FLAT, _N, _N), emit


#: For each set of lanes, as bits, their numbers from the lowest on, a byte each.
LANES_OF_BITS = np.array(
    [
        sum(lane << (8 * n) for n, lane in enumerate(lane for lane in range(LANES) if bits >> lane & 1))
        for bits in range(1 << LANES)
    ],
    np.uint64,
)


@intrinsic
def collect_above(typing, values, at, count, bound, lanes_of_bits, out):  # type: ignore[no-untyped-def]
    """Write to `out` the offsets from `at` of the values that are not <= bound (NaN is not); returns how many.

    `count` a multiple of 8 up to 256; `out` [264] uint8; `lanes_of_bits` is `LANES_OF_BITS`. Without a branch on the
    values: eight offsets are written whatever a vector holds, and the end moves by those that count.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values, table, out = (_pointer(context, builder, signature.args[n], args[n]) for n in (0, 4, 5))
        bound = _splat(builder, args[3])
        found = cgutils.alloca_once_value(builder, _int(0))
        offsets = cgutils.alloca_once_value(builder, _int(0))
        with cgutils.for_range(builder, builder.sdiv(args[2], _int(LANES)), intp=_I64) as vector:
            here = builder.add(args[1], builder.mul(vector.index, _int(LANES)))
            above = builder.fcmp_unordered(">", _load(builder, values, here), bound)
            bits = builder.zext(builder.bitcast(above, ir.IntType(LANES)), _I64)
            numbers = builder.add(builder.load(builder.gep(table, [bits])), builder.load(offsets))
            place = builder.gep(out, [builder.load(found)])
            builder.store(numbers, builder.bitcast(place, _I64.as_pointer()), align=1)
            builder.store(builder.add(builder.load(found), builder.ctpop(bits)), found)
            builder.store(builder.add(builder.load(offsets), _int(0x0808080808080808)), offsets)
        return builder.load(found)

    return types.int64(_FLAT, _N, _N, types.float32, _TABLE, _BYTES), emit


@intrinsic
def exp_row(typing, values, at, count, shift):  # type: ignore[no-untyped-def]
    """values = exp(values - shift), none of them far above shift; returns their sum. `count` a multiple of 8.

    Cephes' expf: 2^n e^r with |r| <= ln(2)/2 and a polynomial of degree 7, within 2 ulp; below e^-87.3 it is 0, and NaN
    stays NaN. The sum is that of eight lanes, each ascending, then of halves.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values = _pointer(context, builder, signature.args[0], args[0])
        shift = _splat(builder, args[3])
        total = cgutils.alloca_once_value(builder, _ZERO)
        with cgutils.for_range(builder, builder.sdiv(args[2], _int(LANES)), intp=_I64) as vector:
            here = builder.add(args[1], builder.mul(vector.index, _int(LANES)))
            x = builder.fsub(_load(builder, values, here), shift)
            result = _exp(builder, x)
            _store(builder, result, values, here)
            builder.store(builder.fadd(builder.load(total), result), total)
        return _halves(builder, builder.load(total), builder.fadd)

    return types.float32(_FLAT, _N, _N, types.float32), emit


@intrinsic
def max_row(typing, values, at, count):  # type: ignore[no-untyped-def]
    """The greatest of `count` values, a multiple of 8; NaN is passed over."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values = _pointer(context, builder, signature.args[0], args[0])
        greatest = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [float("-inf")] * LANES))

        def greater(one: ir.Value, other: ir.Value) -> ir.Value:
            return builder.select(builder.fcmp_ordered(">", other, one), other, one)

        with cgutils.for_range(builder, builder.sdiv(args[2], _int(LANES)), intp=_I64) as vector:
            here = builder.add(args[1], builder.mul(vector.index, _int(LANES)))
            builder.store(greater(builder.load(greatest), _load(builder, values, here)), greatest)
        return _halves(builder, builder.load(greatest), greater)

    return types.float32(_FLAT, _N, _N), emit


@intrinsic
def dot_row(typing, a, a_at, b, b_at, count):  # type: ignore[no-untyped-def]
    """Sum of a[i] b[i] over `count`, a multiple of 8: eight lanes, each ascending, then halves."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        a = _pointer(context, builder, signature.args[0], args[0])
        b = _pointer(context, builder, signature.args[2], args[2])
        total = cgutils.alloca_once_value(builder, _ZERO)
        with cgutils.for_range(builder, builder.sdiv(args[4], _int(LANES)), intp=_I64) as vector:
            step = builder.mul(vector.index, _int(LANES))
            product = builder.fmul(
                _load(builder, a, builder.add(args[1], step)), _load(builder, b, builder.add(args[3], step))
            )
            builder.store(builder.fadd(builder.load(total), product), total)
        return _halves(builder, builder.load(total), builder.fadd)

    return types.float32(_FLAT, _N, _FLAT, _N, _N), emit


@intrinsic
def copy_row(typing, source, source_at, out, out_at, count):  # type: ignore[no-untyped-def]
    """out = source, of any `count`; a bfloat16, given as its 16 bits, becomes the float32 that it equals."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        narrow = signature.args[0].dtype == types.uint16
        source = _pointer(context, builder, signature.args[0], args[0])
        out = _pointer(context, builder, signature.args[2], args[2])
        # One at a time: there is nothing to round, so the compiler may vectorize as it likes.
        with cgutils.for_range(builder, args[4], intp=_I64) as column:
            value = builder.load(builder.gep(source, [builder.add(args[1], column.index)]))
            if narrow:
                value = builder.bitcast(builder.shl(builder.zext(value, _I32), ir.Constant(_I32, 16)), _F32)
            builder.store(value, builder.gep(out, [builder.add(args[3], column.index)]))
        return context.get_dummy_value()

    return types.void(source, _N, _FLAT, _N, _N), emit


@intrinsic
def add_row(typing, values, at, out, out_at, count):  # type: ignore[no-untyped-def]
    """out += values, of any `count`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values = _pointer(context, builder, signature.args[0], args[0])
        out = _pointer(context, builder, signature.args[2], args[2])
        with cgutils.for_range(builder, args[4], intp=_I64) as column:
            value = builder.load(builder.gep(values, [builder.add(args[1], column.index)]))
            place = builder.gep(out, [builder.add(args[3], column.index)])
            builder.store(builder.fadd(builder.load(place), value), place)
        return context.get_dummy_value()

    return types.void(_FLAT, _N, _FLAT, _N, _N), emit


@intrinsic
def scale_row(typing, values, at, count, factor):  # type: ignore[no-untyped-def]
    """values *= factor; `count` a multiple of 8."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values = _pointer(context, builder, signature.args[0], args[0])
        factor = _splat(builder, args[3])
        with cgutils.for_range(builder, builder.sdiv(args[2], _int(LANES)), intp=_I64) as vector:
            here = builder.add(args[1], builder.mul(vector.index, _int(LANES)))
            _store(builder, builder.fmul(_load(builder, values, here), factor), values, here)
        return context.get_dummy_value()

    return types.void(_FLAT, _N, _N, types.float32), emit


@intrinsic
def slope_row(typing, out, at, weights, weights_at, pull, pull_at, count, mean, scale):  # type: ignore[no-untyped-def]
    """out = weights (pull - mean) scale, the gradient of softmax; `count` a multiple of 8."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        out, weights, pull = (_pointer(context, builder, signature.args[n], args[n]) for n in (0, 2, 4))
        mean, scale = _splat(builder, args[7]), _splat(builder, args[8])
        with cgutils.for_range(builder, builder.sdiv(args[6], _int(LANES)), intp=_I64) as vector:
            step = builder.mul(vector.index, _int(LANES))
            weight = _load(builder, weights, builder.add(args[3], step))
            distance = builder.fsub(_load(builder, pull, builder.add(args[5], step)), mean)
            value = builder.fmul(builder.fmul(weight, distance), scale)
            _store(builder, value, out, builder.add(args[1], step))
        return context.get_dummy_value()

    return types.void(_FLAT, _N, _FLAT, _N, _FLAT, _N, _N, types.float32, types.float32), emit


@intrinsic
def bits_of(typing, value):  # type: ignore[no-untyped-def]
    """The bits of a float32 as int32."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), emit


@intrinsic
def float_of(typing, bits):  # type: ignore[no-untyped-def]
    """The float32 of 32 bits."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), emit


def _panel(finish: _Finish) -> Any:
    """The code generator of a panel: 4 by 16 sums in registers, one broadcast of A and two vectors of B a term."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        _, a_at, a_step, _, b_at, b_step, depth, _, c_at, c_step, width = args[:11]
        a, b, c = (_pointer(context, builder, signature.args[n], args[n]) for n in (0, 3, 7))
        sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(2)] for _ in range(PANEL_ROWS)]
        cells = [(row, half) for row in range(PANEL_ROWS) for half in range(2)]
        with cgutils.for_range(builder, builder.sdiv(width, _int(PANEL_COLUMNS)), intp=_I64) as block:
            column = builder.mul(block.index, _int(PANEL_COLUMNS))
            places = [
                [
                    builder.add(_row(builder, c_at, c_step, row), builder.add(column, _int(half * LANES)))
                    for half in range(2)
                ]
                for row in range(PANEL_ROWS)
            ]
            for row, half in cells:
                start = _load(builder, c, places[row][half]) if finish is _Finish.ADD else _ZERO
                builder.store(start, sums[row][half])
            with cgutils.for_range(builder, depth, intp=_I64) as term:
                here = builder.add(builder.add(b_at, builder.mul(term.index, b_step)), column)
                values = [_load(builder, b, builder.add(here, _int(half * LANES))) for half in range(2)]
                for row in range(PANEL_ROWS):
                    place = builder.add(_row(builder, a_at, a_step, row), term.index)
                    factor = _splat(builder, builder.load(builder.gep(a, [place])))
                    for half in range(2):
                        total = builder.fadd(builder.load(sums[row][half]), builder.fmul(factor, values[half]))
                        builder.store(total, sums[row][half])
            for row, half in cells:
                total = builder.load(sums[row][half])
                if finish in (_Finish.SCORE_FIRST, _Finish.SCORE_NEXT):
                    weights = _pointer(context, builder, signature.args[11], args[11])
                    weight = builder.load(builder.gep(weights, [_row(builder, args[12], args[13], row)]))
                    positive = builder.select(builder.fcmp_ordered("<", total, _ZERO), _ZERO, total)
                    held = _ZERO if finish is _Finish.SCORE_FIRST else _load(builder, c, places[row][half])
                    # From +0.0 on, so that a dead head under a negative weight leaves no -0.0.
                    total = builder.fadd(held, builder.fmul(_splat(builder, weight), positive))
                _store(builder, total, c, places[row][half])
        return context.get_dummy_value()

    return emit


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x of a vector; source of the constants: Cephes, single/expf.c."""

    def many(value: float) -> ir.Constant:
        return ir.Constant(_VECTOR, [value] * LANES)

    def many_int(value: int) -> ir.Constant:
        return ir.Constant(integers, [value] * LANES)

    integers = ir.VectorType(_I32, LANES)
    x = builder.select(builder.fcmp_ordered("<", x, many(-88.0)), many(-88.0), x)  # NaN is not less
    # Adding 1.5 * 2^23 leaves x / ln 2 rounded to an integer in the low bits.
    magic = builder.fadd(builder.fmul(x, many(1.44269504088896341)), many(12582912.0))
    n = builder.fsub(magic, many(12582912.0))
    r = builder.fsub(x, builder.fmul(n, many(0.693359375)))
    r = builder.fsub(r, builder.fmul(n, many(-2.12194440e-4)))
    poly = many(1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        poly = builder.fadd(builder.fmul(poly, r), many(term))
    poly = builder.fadd(builder.fadd(builder.fmul(poly, builder.fmul(r, r)), r), many(1.0))
    exponent = builder.add(builder.bitcast(magic, integers), many_int(127 - 0x4B400000))
    return builder.fmul(poly, builder.bitcast(builder.shl(exponent, many_int(23)), _VECTOR))


def _halves(builder: ir.IRBuilder, vector: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Lanes 0-3 with 4-7, then 0-1 with 2-3, then 0 with 1."""
    for half in (4, 2, 1):
        other = _shuffle(builder, vector, vector, [(lane + half) % LANES for lane in range(LANES)])
        vector = join(vector, other)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _row(builder: ir.IRBuilder, at: ir.Value, step: ir.Value, row: int) -> ir.Value:
    return builder.add(at, builder.mul(step, _int(row)))


def _pointer(context: Any, builder: ir.IRBuilder, kind: types.Type, array: ir.Value) -> ir.Value:
    return context.make_array(kind)(context, builder, array).data


def _load(builder: ir.IRBuilder, base: ir.Value, at: ir.Value) -> ir.Value:
    return builder.load(builder.bitcast(builder.gep(base, [at]), _VECTOR.as_pointer()), align=4)


def _store(builder: ir.IRBuilder, value: ir.Value, base: ir.Value, at: ir.Value) -> None:
    builder.store(value, builder.bitcast(builder.gep(base, [at]), _VECTOR.as_pointer()), align=4)


def _splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return _shuffle(builder, one, one, [0] * LANES)


def _shuffle(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, mask: list[int]) -> ir.Value:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_I32, LANES), mask))
