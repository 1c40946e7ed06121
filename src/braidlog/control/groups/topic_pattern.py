"""Regular expressions over topic names, for subscriptions.

Matching takes time linear in the name.

A pattern comes from a client and is tried on every topic, so it must never take long. Python's own expressions can take
exponential time. These are compiled to states, and all states that a name can be in are followed at once. The syntax is
the part of RE2's that makes sense for names: no back references, no look-around.
"""

from dataclasses import dataclass, field

STATES_MAX = 1_000
PATTERN_CHARACTERS_MAX = 10_000
NESTING_MAX = 200
REPEAT_MAX = 500

_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACE = frozenset("\t\n\f\r ")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_POSIX = {
    "alnum": _WORD - {"_"},
    "alpha": _WORD - _DIGITS - {"_"},
    "digit": _DIGITS,
    "lower": frozenset("abcdefghijklmnopqrstuvwxyz"),
    "upper": frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "space": _SPACE | {"\v"},
    "word": _WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
    "punct": frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
}


class InvalidPattern(ValueError):
    """The text is not a pattern, or the pattern is too large."""


@dataclass(frozen=True, slots=True)
class _Characters:
    """Matches one character in `chars` or a range; if negated, in none of them."""

    chars: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False

    def matches(self, character: str) -> bool:
        found = character in self.chars or any(low <= character <= high for low, high in self.ranges)
        return found is not self.negated


@dataclass(slots=True)
class _State:
    """A state of the compiled pattern.

    It consumes a character that `take` matches and goes on to `out`. Without `take` it goes on to all of `out` at once,
    if `at` allows it: "^" only at the start, "$" only at the end.
    """

    take: _Characters | None = None
    at: str = ""
    out: list[int] = field(default_factory=list)


# A piece of the expression, before it is compiled: ("chars", _Characters), ("at", "^"), ("all", pieces),
# ("any", pieces) or ("repeat", piece, least, most or None).
_Piece = tuple[object, ...]


class TopicPattern:
    """A compiled pattern. It matches whole names."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidPattern(f"more than {PATTERN_CHARACTERS_MAX} characters")
        self._states: list[_State] = []
        end = self._add(_State())
        self._end = end
        self._start = self._compile(_Parser(pattern).parse(), end)

    def matches(self, name: str) -> bool:
        current = self._follow({self._start}, is_start=True, is_end=not name)
        for position, character in enumerate(name):
            taken: set[int] = set()
            for number in current:
                state = self._states[number]
                if state.take is not None and state.take.matches(character):
                    taken.update(state.out)
            if not taken:
                return False
            current = self._follow(taken, is_start=False, is_end=position == len(name) - 1)
        return self._end in current

    def _follow(self, numbers: set[int], *, is_start: bool, is_end: bool) -> set[int]:
        """Return all states that can be reached from these without a character."""
        reached = set(numbers)
        pending = list(numbers)
        while pending:
            state = self._states[pending.pop()]
            if state.take is not None or (state.at == "^" and not is_start) or (state.at == "$" and not is_end):
                continue
            for number in state.out:
                if number not in reached:
                    reached.add(number)
                    pending.append(number)
        return reached

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise InvalidPattern(f"it needs more than {STATES_MAX} states")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, piece: _Piece, then: int) -> int:
        """Compile a piece that `then` follows. Returns the number of its first state."""
        match piece:
            case ("chars", _Characters() as characters):
                return self._add(_State(take=characters, out=[then]))
            case ("at", str() as at):
                return self._add(_State(at=at, out=[then]))
            case ("all", list() as pieces):
                for each in reversed(pieces):
                    then = self._compile(each, then)
                return then
            case ("any", list() as pieces):
                return self._add(_State(out=[self._compile(each, then) for each in pieces]))
            case ("repeat", tuple() as inner, int() as least, most):
                return self._compile_repeat(inner, least, most if isinstance(most, int) else None, then)
        raise AssertionError(piece)

    def _compile_repeat(self, inner: _Piece, least: int, most: int | None, then: int) -> int:
        if most is None:
            again = self._add(_State())
            self._states[again].out = [self._compile(inner, again), then]
            start = again
        else:
            start = then
            for _ in range(most - least):
                start = self._add(_State(out=[self._compile(inner, start), then]))
        for _ in range(least):
            start = self._compile(inner, start)
        return start


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._ignore_case = False

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._text):
            raise InvalidPattern(f"unexpected ')' at {self._at}")
        return piece

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern("it ends too soon")
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise InvalidPattern(f"nested deeper than {NESTING_MAX}")
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else ("any", branches)

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while (character := self._peek()) and character not in "|)":
            piece = self._one()
            if piece is not None:
                pieces.append(self._repeated(piece))
        return ("all", pieces)

    def _one(self) -> _Piece | None:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return ("chars", self._set())
        if character == ".":
            return ("chars", _Characters(frozenset("\n"), negated=True))
        if character in "^$":
            return ("at", character)
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise InvalidPattern(f"nothing to repeat at {self._at - 1}")
        return ("chars", self._literal(character))

    def _literal(self, character: str) -> _Characters:
        return self._folded(_Characters(frozenset(character)))

    def _folded(self, characters: _Characters) -> _Characters:
        if not self._ignore_case:
            return characters
        chars = frozenset(case for each in characters.chars for case in (each, each.lower(), each.upper()))
        ranges = list(characters.ranges)
        for low, high in characters.ranges:
            if low.isascii() and high.isascii():
                inside = {chr(code) for code in range(ord(low), ord(high) + 1)}
                chars |= {each.swapcase() for each in inside if each.isalpha()}
        return _Characters(chars, tuple(ranges), characters.negated)

    def _group(self) -> _Piece | None:
        if self._skip("?"):
            if self._skip("P<") or (self._peek() == "<" and not self._text.startswith(("<=", "<!"), self._at)):
                self._skip("<")
                name = ""
                while (character := self._next()) != ">":
                    name += character
                if not name.isidentifier():
                    raise InvalidPattern(f"a group cannot be named {name!r}")
            elif not self._skip(":"):
                return self._flags()
        before = self._ignore_case
        piece = self._alternatives()
        if not self._skip(")"):
            raise InvalidPattern("a parenthesis is not closed")
        self._ignore_case = before
        return piece

    def _flags(self) -> _Piece | None:
        """Read `(?i)`, for the rest, or `(?i:…)`, for a group.

        The other flags mean nothing in names.
        """
        on = True
        ignore_case = self._ignore_case
        while (character := self._next()) not in ":)":
            if character == "-":
                on = False
            elif character == "i":
                ignore_case = on
            elif character not in "smU":
                raise InvalidPattern(f"(?{character} is not supported")
        before, self._ignore_case = self._ignore_case, ignore_case
        if character == ")":
            return None
        piece = self._alternatives()
        if not self._skip(")"):
            raise InvalidPattern("a parenthesis is not closed")
        self._ignore_case = before
        return piece

    def _escape(self) -> _Piece:
        character = self._next()
        if character in "Az":
            return ("at", "^" if character == "A" else "$")
        if character == "Q":
            end = self._text.find("\\E", self._at)
            text = self._text[self._at : end if end >= 0 else len(self._text)]
            self._at = end + 2 if end >= 0 else len(self._text)
            return ("all", [("chars", self._literal(each)) for each in text])
        return ("chars", self._escaped_characters(character))

    def _escaped_characters(self, character: str) -> _Characters:
        if character.lower() in _CLASSES:
            return _Characters(_CLASSES[character.lower()], negated=character.isupper())
        if character in _ESCAPES:
            return _Characters(frozenset(_ESCAPES[character]))
        if character == "x":
            digits = self._next() + self._next()
            try:
                return self._literal(chr(int(digits, 16)))
            except ValueError:
                raise InvalidPattern(f"\\x{digits} is not a character") from None
        if character.isalnum():
            raise InvalidPattern(f"\\{character} is not supported")
        return self._literal(character)

    def _set(self) -> _Characters:
        negated = self._skip("^")
        chars: set[str] = set()
        ranges: list[tuple[str, str]] = []
        is_first = True
        while True:
            character = self._next()
            if character == "]" and not is_first:
                break
            is_first = False
            if character == "[" and self._skip(":"):
                chars |= self._posix()
                continue
            if character == "\\":
                escaped = self._escaped_characters(self._next())
                if escaped.negated:
                    raise InvalidPattern("a negated class inside a set is not supported")
                if len(escaped.chars) != 1:
                    chars |= escaped.chars
                    continue
                (character,) = escaped.chars
            if self._peek() == "-" and not self._text.startswith("-]", self._at):
                self._next()
                high = self._next()
                if high == "\\":
                    (high,) = self._escaped_characters(self._next()).chars or ("",)
                if high < character:
                    raise InvalidPattern(f"the range {character}-{high} is the wrong way round")
                ranges.append((character, high))
            else:
                chars.add(character)
        return self._folded(_Characters(frozenset(chars), tuple(ranges), negated))

    def _posix(self) -> frozenset[str]:
        name = ""
        while not self._skip(":]"):
            name += self._next()
        if name not in _POSIX:
            raise InvalidPattern(f"[:{name}:] is not a class")
        return _POSIX[name]

    def _repeated(self, piece: _Piece) -> _Piece:
        while (bounds := self._bounds()) is not None:
            self._skip("?")  # a match of the whole name does not depend on greediness
            piece = ("repeat", piece, *bounds)
        return piece

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._skip("*"):
            return 0, None
        if self._skip("+"):
            return 1, None
        if self._skip("?"):
            return 0, 1
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : end].partition(",") if end >= 0 else ("", "", "")
        if not (least.isascii() and least.isdigit()) or (most and not (most.isascii() and most.isdigit())):
            return None  # a literal brace: the caller reads it as the next character
        self._at = end + 1
        low = int(least)
        high = None if comma and not most else int(most or least)
        if low > REPEAT_MAX or (high is not None and not low <= high <= REPEAT_MAX):
            raise InvalidPattern(f"repeats are 0 to {REPEAT_MAX}, the lower first")
        return low, high
