"""What the shards of an agent tell each other about journal files.

A shard that pulls journaled batches of others puts them into a file of its own journal. They are acknowledged when the
file is stored, but their owners must also know when it goes to the control plane, and when it is sequenced.

The table lies in the shared memory: for each shard a count of its files, and one word for each of the latest ones:

    shard 0: next number │ words of its files │ shard 1: …

A word holds the file's number and its state. Only the shard that wrote the file changes it, and nobody needs a lock:
a word is seen whole, and its number says whether it is the right one.
"""

from enum import IntEnum

LINE_BYTES = 64
_WORDS = LINE_BYTES // 8
_STATES = 4


class FileState(IntEnum):
    """The state of a journal file whose batches several shards own."""

    STORED = 0
    HANDED_OVER = 1
    """It is on its way to the control plane: files behind it may follow."""
    SEQUENCED = 2
    LEFT = 3
    """Its writer could not have it sequenced. A replay will."""


class FileStates:
    """The states of the latest files of each shard."""

    def __init__(self, memory: memoryview, shard_count: int, file_count: int) -> None:
        """`file_count` says how many files of each shard the table has room for."""
        self._words = memory[: self.size_bytes(shard_count, file_count)].cast("q")
        self._file_count = file_count
        self._stride = _stride(file_count)

    @staticmethod
    def size_bytes(shard_count: int, file_count: int) -> int:
        return shard_count * _stride(file_count) * 8

    def open(self, shard: int) -> int:
        """Return the number of the shard's next file, which is stored.

        The shard's own process calls it. Numbers go on when the process is replaced.
        """
        at = shard * self._stride
        number = self._words[at] + 1
        self._words[self._at(shard, number)] = number * _STATES + FileState.STORED
        self._words[at] = number
        return number

    def set_state(self, shard: int, number: int, state: FileState) -> None:
        """Advance the state of one of the shard's own files, if it is still in the table.

        States only grow: a file may be left before it was said that it is on its way.
        """
        at, word = self._at(shard, number), number * _STATES + state
        if number * _STATES <= self._words[at] < word:
            self._words[at] = word

    def state(self, shard: int, number: int) -> FileState:
        """Return a file's state as far as it can be seen.

        A file that has left the table counts as left to be replayed: nobody knows any more.
        """
        word = self._words[self._at(shard, number)]
        if word // _STATES == number:
            return FileState(word % _STATES)
        return FileState.LEFT if word // _STATES > number else FileState.STORED

    def _at(self, shard: int, number: int) -> int:
        return shard * self._stride + _WORDS + number % self._file_count


def _stride(file_count: int) -> int:
    """Return the words of one shard's part, in whole cache lines."""
    return _WORDS + -(-file_count // _WORDS) * _WORDS
