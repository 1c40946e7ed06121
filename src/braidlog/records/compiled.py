"""What compiled loops share: compiler options, argument types, copying bytes.

Kernels are compiled when their module is imported, for the signatures they declare, and kept in `__pycache__`, so only
the first import after an installation takes seconds. A kernel that uses one of another module is not compiled again
when that one changes: delete `__pycache__` after editing them. Arguments are declared read-only where they are only
read, because arrays over `bytes` are.
"""

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
SmallNumbers = NDArray[np.int32]

types: Any = numba.types
# Inside a kernel these fix the width of a number; elsewhere they are integers.
i64: Callable[[Any], int] = cast(Any, np.int64)
u64: Callable[[Any], int] = cast(Any, np.uint64)
u8: Callable[[Any], int] = cast(Any, np.uint8)

I64 = types.int64
U64 = types.uint64
U8_IN = types.Array(types.uint8, 1, "C", readonly=True)
U8_OUT = types.Array(types.uint8, 1, "C")
I32_IN = types.Array(types.int32, 1, "C", readonly=True)
I32_OUT = types.Array(types.int32, 1, "C")
I64_IN = types.Array(types.int64, 1, "C", readonly=True)
I64_OUT = types.Array(types.int64, 1, "C")
TABLE_IN = types.Array(types.int64, 2, "C", readonly=True)
TABLE_OUT = types.Array(types.int64, 2, "C")


raw_memcpy: Any = cgutils.raw_memcpy
_BYTE: Any = ir.IntType(8)
_INT: Any = ir.IntType(32)
_WORD: Any = ir.IntType(64)


def compiled(result: Any, *arguments: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function for these types of result and arguments.

    It runs without the interpreter's lock.
    """
    compiler: Any = numba.njit

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = result(*arguments)
        try:
            kernel: Callable[P, R] = compiler(signature, cache=True, nogil=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            # Neither the source's folder nor the home directory is writable: compile in every process.
            kernel = compiler(signature, nogil=True)(function)
        return kernel

    return decorate


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Inline a small part of a kernel into its callers.

    This is twice as fast as a call.
    """
    compiler: Any = numba.njit
    decorate: Callable[[Callable[P, R]], Callable[P, R]] = compiler(inline="always")
    return decorate(function)


def _copy_bytes(typing_context: Any, to: Any, to_position: Any, source: Any, position: Any, count: Any) -> Any:
    """Copy `count` bytes from one array to another, as one memcpy.

    It does `to[to_position : to_position + count] = source[position : position + count]`.

    A loop over bytes is ten times slower, because the compiler cannot know that the arrays are apart. Nothing is
    checked: callers have proven that both ranges lie within their arrays.
    """
    signature = types.void(to, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_value, to_position_value, source_value, position_value, count_value = arguments
        to_data = context.make_array(signature.args[0])(context, builder, to_value).data
        source_data = context.make_array(signature.args[2])(context, builder, source_value).data
        raw_memcpy(
            builder,
            builder.gep(to_data, [to_position_value]),
            builder.gep(source_data, [position_value]),
            count_value,
            1,
        )
        return context.get_dummy_value()

    return signature, generate


copy_bytes: Any = intrinsic(_copy_bytes)


def _load_word(typing_context: Any, array: Any, position: Any) -> Any:
    """Load eight bytes from `position` on as one little-endian number.

    Callers know that they exist.
    """
    signature = types.uint64(array, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), _WORD.as_pointer())
        word = builder.load(address, align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return signature, generate


load_word: Any = intrinsic(_load_word)


def _prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    """Prefetch a row of a two-dimensional array.

    The processor continues meanwhile, so the misses of many rows take no longer than that of one.
    """
    signature = types.void(array, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = builder.extract_value(view.strides, 0)
        address = builder.bitcast(view.data, _BYTE.as_pointer())
        address = builder.gep(address, [builder.mul(arguments[1], stride)])
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, _INT(0), _INT(3), _INT(1)])  # to read, into every cache, as data
        return context.get_dummy_value()

    return signature, generate


prefetch: Any = intrinsic(_prefetch)
