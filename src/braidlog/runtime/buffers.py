"""Buffers for bytes that are about to be overwritten anyway."""

import ctypes
import sys

if sys.implementation.name == "cpython":
    _new = ctypes.pythonapi.PyByteArray_FromStringAndSize
    _new.restype = ctypes.py_object
    _new.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)

    def unzeroed(size_bytes: int) -> bytearray:
        """A buffer with anything in it: filling a megabyte with zeros takes as long as reading it from the socket."""
        buffer: bytearray = _new(None, size_bytes)
        return buffer

else:

    def unzeroed(size_bytes: int) -> bytearray:
        return bytearray(size_bytes)
