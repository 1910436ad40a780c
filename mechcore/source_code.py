"""Digests of the source code that makes a result, and of what it imports from mechcore.

Documentation, layout and code that only shows results (`SHOWING`) do not count; for the standard
library and packages that are `VERSIONED`, only versions do.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from mechcore.errors import InputError

PACKAGE = "mechcore"

WITHOUT_EFFECT = {
    f"{PACKAGE}.{name}" for name in ("errors", "progress", "registry", "source_code", "study")
}
"""Modules of mechcore that change no result: messages, display, lookup and storage."""

SHOWING = frozenset(("blocks", "headlines", "sections", "tiles"))

VERSIONED = ("torch", "transformers", "accelerate", "transformer-lens", "numpy", "scipy")
"""Packages that any result may depend on; their versions count."""

_VERSIONED = {*(name.replace("-", "_") for name in VERSIONED), *sys.stdlib_module_names}


def code_digests(things: Iterable[object]) -> dict[str, str]:
    """Digests of the code of classes and functions by module; of a notebook's by their own name."""
    digests: dict[str, str] = {}
    waiting: list[str] = []
    for thing in things:
        while isinstance(thing, partial):
            name = f"arguments of {getattr(thing.func, '__qualname__', thing.func)}"
            digests[name] = _combined(digests.get(name, ""), repr((thing.args, thing.keywords)))
            thing = thing.func
        defined: Any = thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)
        for owner in inspect.getmro(defined) if inspect.isclass(defined) else [defined]:
            module = str(owner.__module__)  # None for methods of built-in objects
            if module == "__mp_main__":  # the script, in a worker
                module = "__main__"
            if module.partition(".")[0] in _VERSIONED:
                continue
            if _file_of(module) is None:
                name = f"{module}.{owner.__qualname__}"  # shared by several lambdas
                digests[name] = _combined(
                    digests.get(name, ""), _digest(ast.parse(_source_of(owner)))
                )
            else:
                waiting.append(module)
    while waiting:
        module = waiting.pop()
        if module in digests or ".".join(module.split(".")[:2]) in WITHOUT_EFFECT:
            continue
        file = _file_of(module)
        if file is not None:
            state = file.stat()
            digests[module], imported = _read(module, file, state.st_mtime_ns, state.st_size)
            waiting += imported
    return dict(sorted(digests.items()))


def _combined(*digests: str) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _source_of(thing: object) -> str:
    try:
        return textwrap.dedent(inspect.getsource(thing))  # type: ignore[arg-type]
    except (OSError, TypeError) as error:
        if source := _source_in_cell(thing):
            return source
        raise InputError(
            f"{thing!r}: its source cannot be read ({error}), so changes of its "
            "results would go unnoticed; define it in a file or a notebook cell"
        ) from error


def _source_in_cell(thing: object) -> str | None:
    """The source of a notebook's class, from its methods' cell, where Python does not look."""
    methods = vars(thing).values() if inspect.isclass(thing) else ()
    for code in (method.__code__ for method in methods if inspect.isfunction(method)):
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse("".join(linecache.getlines(code.co_filename)))):
                if (
                    isinstance(node, ast.ClassDef)
                    and node.name == thing.__name__  # type: ignore[attr-defined]
                    and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)
                ):
                    return ast.unparse(node)
    return None


@cache
def _places(package: str) -> tuple[Path, ...]:
    try:
        spec = None if package == "__main__" else find_spec(package)
    except ValueError:  # made in memory
        spec = None
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(map(Path, spec.submodule_search_locations))
    return (Path(spec.origin),) if spec.has_location and spec.origin else ()


def _file_of(module: str) -> Path | None:
    package, *rest = module.split(".")
    for place in _places(package):
        if place.suffix == ".py":
            return None if rest else place
        below = place.joinpath(*rest)
        for file in (below / "__init__.py", below.with_name(f"{below.name}.py")):
            if file.is_file():
                return file
    return None


@lru_cache(maxsize=4096)
def _read(module: str, file: Path, modified: int, size: int) -> tuple[str, tuple[str, ...]]:
    """Digest of a module, and the modules it imports from its own package and from mechcore."""
    del modified, size  # they are part of the cache key: an edited file is read again
    tree = _computing(ast.parse(file.read_text(encoding="utf-8")))
    imported = set(_imports(tree, module, file.name == "__init__.py"))
    return _digest(tree), tuple(sorted(imported - {module}))


def _computing(tree: ast.Module) -> ast.Module:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    shows = {id(node) for cls in classes for node in cls.body if _shows(node)}
    if not shows:
        return tree
    for cls in classes:
        cls.body = [node for node in cls.body if id(node) not in shows] or [ast.Pass()]
    while True:
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        left = [node for node in tree.body if not _private(node) or _private(node) & used]
        if len(left) == len(tree.body):
            return tree
        tree.body = left


def _shows(node: ast.stmt) -> bool:
    decorated = getattr(node, "decorator_list", ())
    named = getattr(node, "name", "") in SHOWING
    return named and any(ast.unparse(decorator) == "classmethod" for decorator in decorated)


def _private(node: ast.stmt) -> set[str]:
    """The names that a module's statement defines, if all of them are private."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        return names - {"*"}
    names = {getattr(node, "name", "")}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {ast.unparse(target) for target in targets}
    return names if all(name.startswith("_") for name in names) else set()


def _digest(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            # A string that stands alone is documentation, also after an assignment.
            node.body = [inner for inner in node.body if not _is_text(inner)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Modules of these packages that a module imports, in a package also for type checking."""
    own = {module.partition(".")[0], PACKAGE}
    for node in ast.walk(tree) if is_package else _run_statements(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in own)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module if is_package else module.rpartition(".")[0])
            if base.partition(".")[0] in own:
                yield from (_defining(base, alias.name) for alias in node.names)


_FOR_TYPES = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _run_statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in _FOR_TYPES:
            for other in node.orelse:
                yield from (other, *_run_statements(other))
            continue
        yield node
        yield from _run_statements(node)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    return resolve_name("." * node.level + (node.module or ""), package)


def _defining(base: str, name: str) -> str:
    """The module that defines the name in ``from base import name``, seen through re-exports."""
    if _file_of(f"{base}.{name}") is not None:
        return f"{base}.{name}"
    file = _file_of(base)
    if file is None or file.name != "__init__.py":
        return base
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            return _defining(_absolute(node, base), name)
    return base
