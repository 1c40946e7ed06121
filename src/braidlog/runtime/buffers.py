"""Buffers that are not zeroed, because they are overwritten at once."""

import ctypes
import sys

if sys.implementation.name == "cpython":
    _new = ctypes.pythonapi.PyByteArray_FromStringAndSize
    _new.restype = ctypes.py_object
    _new.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)

    def unzeroed(size_bytes: int) -> bytearray:
        """Return a buffer with arbitrary content.

        Zeroing a megabyte takes as long as reading it from the socket.
        """
        buffer: bytearray = _new(None, size_bytes)
        return buffer

else:

    def unzeroed(size_bytes: int) -> bytearray:
        return bytearray(size_bytes)
