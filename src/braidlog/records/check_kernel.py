"""A compiled loop over a batch's records: fast `records.record_checks`.

The batch comes from a producer, and is checked at the speed of memory.
"""

from braidlog.records.compiled import I32_OUT, I64, U8_IN, Bytes, SmallNumbers, compiled, i64, types
from braidlog.records.problems import Problem
from braidlog.records.record_kernel import read_field, read_record_start, skip_headers, sum_overflows

_OK = int(Problem.NONE)
_BAD_OFFSET_DELTA, _BAD_TIMESTAMP, _BYTES_BEHIND = 9, 13, 14
_NO_TIMESTAMP = -1


@compiled(types.UniTuple(I64, 5), U8_IN, I64, I64, I64, I64, I64, I32_OUT, I32_OUT)
def check_batch(
    data: Bytes,
    start: int,
    record_count: int,
    base_ms: int,
    ms_min: int,
    ms_max: int,
    keyless: SmallNumbers,
    misdated: SmallNumbers,
) -> tuple[int, int, int, int, int]:
    """Check every record from `start` to the end of `data`.

    Returns a problem and the record that has it, how many records have no key, how many have a time outside of
    [ms_min, ms_max], and the highest time. The arrays get the first records without a key and the first with a wrong
    time, as many as they have room for.
    """
    position = start
    end = i64(len(data))
    last_offset_delta = record_count - 1
    null_keys = i64(0)
    wrong_times = i64(0)
    highest_ms = i64(_NO_TIMESTAMP)
    for index in range(record_count):
        delta_ms, offset_delta, key_length, key_start, record_end = read_record_start(
            data, position, end, last_offset_delta
        )
        if record_end < 0:
            return key_start, index, 0, 0, 0
        if offset_delta != index:
            return i64(_BAD_OFFSET_DELTA), index, 0, 0, 0
        value_length, value_start = read_field(data, key_start + max(key_length, 0), record_end)
        if value_start < 0:
            return value_length, index, 0, 0, 0
        value_end = value_start + max(value_length, 0)
        if value_end + 1 != record_end or data[value_end] != 0:
            headers, problem = skip_headers(data, value_end, record_end)
            if headers < 0:
                return problem, index, 0, 0, 0
        if sum_overflows(base_ms, delta_ms):
            return i64(_BAD_TIMESTAMP), index, 0, 0, 0
        timestamp_ms = base_ms + delta_ms
        if timestamp_ms != _NO_TIMESTAMP:
            if timestamp_ms < ms_min or timestamp_ms > ms_max:
                if wrong_times < len(misdated):
                    misdated[wrong_times] = index
                wrong_times += 1
            highest_ms = max(highest_ms, timestamp_ms)
        if key_length < 0:
            if null_keys < len(keyless):
                keyless[null_keys] = index
            null_keys += 1
        position = record_end
    if position != end:
        return i64(_BYTES_BEHIND), record_count, 0, 0, 0
    return i64(_OK), record_count, null_keys, wrong_times, highest_ms
