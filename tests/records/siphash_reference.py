"""SipHash with any number of rounds, written down as its authors describe it."""

_MASK = (1 << 64) - 1


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (64 - count)) & _MASK


def _mix(state: list[int], rounds: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(rounds):
        v0 = (v0 + v1) & _MASK
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 = (v2 + v3) & _MASK
        v3 = _rotate(v3, 16) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = _rotate(v3, 21) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    state[:] = [v0, v1, v2, v3]


def siphash_128(seed: bytes, data: bytes, rounds: int, last_rounds: int) -> tuple[int, int]:
    k0, k1 = int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        state[3] ^= word
        _mix(state, rounds)
        state[0] ^= word
    state[2] ^= 0xEE
    _mix(state, last_rounds)
    low = state[0] ^ state[1] ^ state[2] ^ state[3]
    state[1] ^= 0xDD
    _mix(state, last_rounds)
    return low, state[0] ^ state[1] ^ state[2] ^ state[3]
