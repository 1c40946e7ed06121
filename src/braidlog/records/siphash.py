"""SipHash-1-3 with a result of 128 bits: a key's identity in two numbers.

Without the seed nobody can construct two keys with the same hash, and by accident it does not happen: among a billion
keys the chance is one in 10²⁰.
"""

from braidlog.records.compiled import I64, U8_IN, U64, Bytes, compiled, inlined, types, u64


@inlined
def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a += b
    b = (b << u64(13)) | (b >> u64(51))
    b ^= a
    a = (a << u64(32)) | (a >> u64(32))
    c += d
    d = (d << u64(16)) | (d >> u64(48))
    d ^= c
    a += d
    d = (d << u64(21)) | (d >> u64(43))
    d ^= a
    c += b
    b = (b << u64(17)) | (b >> u64(47))
    b ^= c
    c = (c << u64(32)) | (c >> u64(32))
    return a, b, c, d


@compiled(types.UniTuple(U64, 2), U64, U64, U8_IN, I64, I64)
def siphash(seed_low: int, seed_high: int, data: Bytes, start: int, length: int) -> tuple[int, int]:
    """Return the hash of `data[start : start + length]`, which must exist."""
    a = seed_low ^ u64(0x736F6D6570736575)
    b = seed_high ^ u64(0x646F72616E646F6D) ^ u64(0xEE)
    c = seed_low ^ u64(0x6C7967656E657261)
    d = seed_high ^ u64(0x7465646279746573)
    whole = length & ~7
    for position in range(start, start + whole, 8):
        word = u64(0)
        for index in range(8):
            word |= u64(data[position + index]) << u64(8 * index)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
    word = u64(length & 0xFF) << u64(56)
    for index in range(length & 7):
        word |= u64(data[start + whole + index]) << u64(8 * index)
    d ^= word
    a, b, c, d = _round(a, b, c, d)
    a ^= word
    c ^= u64(0xEE)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    low = a ^ b ^ c ^ d
    b ^= u64(0xDD)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return low, a ^ b ^ c ^ d
