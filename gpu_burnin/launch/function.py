"""The source of a function, as a script that calls it: it has to be whole by itself."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import json
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpu_burnin.launch.errors import LaunchError

_WAY_OUT = "write it as a function of its own at the top of a file, or send the file: muster run FILE.py"
_CALL = """

if __name__ == "__main__":
    import json as _json

    _args, _kwargs = _json.loads({text!r})
    {name}(*_args, **_kwargs)
"""
# Names that a module has by itself.
_MODULE_NAMES = frozenset({"__name__", "__file__", "__doc__", "__builtins__"})


def script_of(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
    """A script that holds the function's source and calls it. Raises LaunchError.

    Its lines have the numbers that they have in the function's own file, for whoever reads a traceback.
    """
    _of_a_kind_that_can_be_sent(function)
    name = function.__name__
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise LaunchError(
            f"the source of {name} cannot be read, as of one that was typed at a prompt; put it into a "
            "file and import it"
        ) from error
    source = textwrap.dedent("".join(lines))
    _whole_by_itself(name, source)
    text = _json_of(name, function, args, kwargs or {})
    # Annotations stay text: what they name is not there.
    head = "from __future__ import annotations" + "\n" * max(1, first - 1)
    return head + source + _CALL.format(text=text, name=name)


def _of_a_kind_that_can_be_sent(function: object) -> None:
    if isinstance(function, functools.partial):
        raise LaunchError("a partial cannot be sent; give the function itself, and its values by args and kwargs")
    if inspect.ismethod(function):
        raise LaunchError(f"{function.__qualname__} is a method, whose object is not sent; {_WAY_OUT}")
    if inspect.isbuiltin(function) or inspect.isclass(function) or not inspect.isfunction(function):
        what = getattr(function, "__name__", None) or type(function).__name__
        raise LaunchError(f"{what} is no function written in Python; {_WAY_OUT}")
    if function.__name__ == "<lambda>":
        raise LaunchError(f"a lambda cannot be sent; {_WAY_OUT}")
    name = function.__name__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise LaunchError(f"{name} is async; let a plain function call asyncio.run")
    if inspect.isgeneratorfunction(function):
        raise LaunchError(f"{name} is a generator, of which a call does nothing; take the yield out")
    if function.__code__.co_freevars:
        free = ", ".join(function.__code__.co_freevars)
        raise LaunchError(f"{name} uses {free} of the function around it, which is not sent; give it by args or kwargs")
    if hasattr(function, "__wrapped__"):
        raise LaunchError(f"{name} is decorated; send the function without its decorator, or the whole file")
    if "<locals>" not in function.__qualname__ and "." in function.__qualname__:
        raise LaunchError(f"{function.__qualname__} is a method; {_WAY_OUT}")


def _whole_by_itself(name: str, source: str) -> None:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise LaunchError(f"the source of {name} does not stand by itself ({error}); {_WAY_OUT}") from error
    [definition, *_] = tree.body
    if isinstance(definition, ast.FunctionDef) and definition.decorator_list:
        raise LaunchError(f"{name} is decorated; send the function without its decorator, or the whole file")
    bare = ast.unparse(_WithoutAnnotations().visit(tree))
    missing = sorted(set(_missing(symtable.symtable(bare, name, "exec"))) - {name})
    if missing:
        raise LaunchError(
            f"{name} uses {', '.join(missing)}, which its file has and the job will not; import or define that inside "
            f"of {name}, give it by args or kwargs, or send the file: muster run FILE.py"
        )


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant("")
        self.generic_visit(node)
        return node


def _missing(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that are looked up in the module and that neither it nor Python has."""
    tables = [table]
    assigned, used = set(_MODULE_NAMES), set()
    while tables:
        one = tables.pop()
        tables += one.get_children()
        for symbol in one.get_symbols():
            of_module = one.get_type() == "module" or symbol.is_global()
            if of_module and symbol.is_assigned():
                assigned.add(symbol.get_name())
            if of_module and symbol.is_referenced():
                used.add(symbol.get_name())
            # An import inside of a function that says `global`.
            if of_module and symbol.is_imported():
                assigned.add(symbol.get_name())
    yield from used - assigned - set(dir(builtins))


def _json_of(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    given = [list(args), dict(kwargs)]
    try:
        text = json.dumps(given, allow_nan=False)
        same = json.loads(text) == given
    except (TypeError, ValueError):
        same = False
    if not same:
        raise LaunchError(
            f"args and kwargs of {name} travel as JSON: numbers, texts, true, false, none, lists, and dictionaries "
            "whose keys are texts; make them of those"
        )
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise LaunchError(f"{name} does not take these args and kwargs: {error}") from error
    return text
