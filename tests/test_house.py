"""House rules for the source: small modules, short lists of arguments, docstrings that say what a thing does."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "braidlog"

MODULE_LINES_MAX = 500
ARGUMENTS_MAX = 8
FIRST_LINE_MAX = 80
RIDDLES = ("Of ", "By ")
"""A docstring that begins with one of these says whose or how before it says what."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def modules(folder: Path = SOURCE) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below a node, with the names of the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}.{child.name}" if outer else child.name
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, name)
        else:
            yield from functions(child, outer)


def argument_count(function: Function) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_exempt(path: str, name: str, function: Function) -> bool:
    """Whether a function may take many arguments: compiled code takes columns, a command of the CLI its options."""
    is_command = path.startswith("cli/") and "." not in name and not name.startswith("_")
    return is_command or any("compiled" in ast.unparse(each) for each in function.decorator_list)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """The strings that document modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_no_module_is_longer_than_a_reader_keeps_in_mind() -> None:
    lengths = {
        path.relative_to(SOURCE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert not {path: lines for path, lines in lengths.items() if lines > MODULE_LINES_MAX}


def test_no_function_takes_more_arguments_than_fit_in_a_glance() -> None:
    found = {
        f"{path}:{name}"
        for path, tree in modules()
        for name, function in functions(tree)
        if argument_count(function) > ARGUMENTS_MAX and not is_exempt(path, name, function)
    }
    assert not found, sorted(found)


def test_docstrings_begin_with_what_the_thing_is_or_does() -> None:
    found = [
        (folder.name, path, text)
        for folder in (SOURCE, ROOT / "bench", ROOT / "tests")
        for path, tree in modules(folder)
        for text in docstrings(tree)
        if text.startswith(RIDDLES)
    ]
    assert not found


def test_docstrings_of_the_source_begin_with_a_short_line() -> None:
    found = [
        (path, lines[0])
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (ast.get_docstring(node) or "").splitlines())
        and len(lines[0]) > FIRST_LINE_MAX
    ]
    assert not found
