"""Where the functions of a script or notebook are: cloudpickle sends them to workers without their files."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roastcoffea.instrument.shared import Remembered
from roastcoffea.log.stacks import SENT, function_of, place_of
from roastcoffea.redaction import redacted

Files = Mapping[str, str]
"""Files by function, as both are called in profiles."""

_known: Final[dict[tuple[str, str], str]] = Remembered()
"""Files of functions, by module and name, as they were before."""

_WRAPPERS: Final = (staticmethod, classmethod)


def files_of_functions(processor: Any) -> Files:
    """Files of the functions in the module that defines a processor; those of one name in two files are left out."""
    while isinstance(processor, functools.partial | types.MethodType):
        processor = processor.func if isinstance(processor, functools.partial) else processor.__func__
    defined = processor if isinstance(processor, types.FunctionType) else type(processor)
    found: dict[str, set[str]] = {}
    module = defined.__module__
    for code in _codes(module):
        name = function_of(code)
        file: str | None = code.co_filename
        if file == SENT:  # a worker in this process has put what it was sent in the place of the class's methods
            file = _known.get((module, name)) or getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            _known[module, name] = file
            found.setdefault(name, set()).add(file)
    return {name: redacted(_called(files.pop())) for name, files in found.items() if len(files) == 1}


def _codes(module: str) -> Iterator[types.CodeType]:
    """Code of functions and methods that a module defines, and of functions inside of them."""
    members = list(vars(sys.modules.get(module, types)).values())
    kinds = [member for member in members if issubclass(type(member), type)]
    members += [member for kind in kinds if kind.__module__ == module for member in vars(kind).values()]
    for member in members:
        found = member.__func__ if isinstance(member, _WRAPPERS) else member
        found = found.fget if type(found) is property else found
        if type(found) is types.FunctionType and found.__module__ == module:
            yield from _with_inner(found.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _called(file: str) -> str:
    """A file as profiles call it; a cell of a notebook as its traceback does, such as In[3]."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    of_cell = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return of_cell[1] if of_cell else place_of(file)
