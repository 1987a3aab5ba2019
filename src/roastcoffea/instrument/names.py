"""Names of runs and processors, and files of the functions of a script or notebook."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final

from roastcoffea.instrument.shared import Remembered
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.stacks import SENT, function_of, place_of
from roastcoffea.redaction import redacted, redacted_beginning

LONGEST_NAME: Final = 120
"""Letters of a processor's name at most."""

CONFIGURATIONS: Final = ("cfg", "config", "configuration")
"""Attributes in which processors of frameworks keep their configuration."""

OPTIONS: Final = ("--cfg", "--config")
"""Options of frameworks' commands for the file of the configuration; PocketCoffea's objects do not know their file."""

SUFFIXES: Final = (".py", ".yaml", ".yml", ".json", ".toml")
"""Files that people write: the pickled configuration of a batch job is named after the job."""

WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
GENERIC: Final = frozenset(
    (
        *("abc", "abstract", "analyses", "analysis", "base", "basic", "cfg", "coffea", "config", "configs"),
        *(
            "configuration",
            "default",
            "generic",
            "job",
            "jobs",
            "main",
            "my",
            "nano",
            "processor",
            "processors",
            "python",
        ),
        *("run", "runner", "src", "template", "test", "tests", "tmp", "user", "workflow", "workflows"),
    )
)
"""Words that tell no analysis from another."""

_SCRIPTS: Final = ("__main__", "__mp_main__")
_NO_FRAMEWORKS: Final = frozenset((*sys.stdlib_module_names, *_SCRIPTS, "coffea", "roastcoffea"))


def given_name(name: str | None) -> str | None:
    """The name that a user gives to a run, in one line; None for none.

    Raises
    ------
    TypeError
        It is no text.
    ValueError
        It has no visible letter.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"the name of a run is text, not {type(name).__name__}: {name!r}")
    if not (line := _line_of(name)):
        raise ValueError(f"the name of a run needs a visible letter, which {name!r} lacks")
    return line


def name_of_processor(processor: Any) -> str:
    """A processor's own name; where a framework made it, that of its configuration or workflow.

    Its own name is a text in its attribute `name`, otherwise the name of the function or class. Attributes are looked
    up without running code of the class, such as properties.
    """
    while (kind := type(processor)) in _WRAPPINGS:
        processor = processor.func if kind is functools.partial else processor.__self__
    name = _text(processor, "name") or _text(processor, "__name__")
    if not name and issubclass(kind, _NAMED):
        name = processor.__name__
    return redacted_beginning(name or _of_framework(processor, kind) or kind.__name__, LONGEST_NAME)


_WRAPPINGS: Final = (functools.partial, types.MethodType)
_NAMED: Final[tuple[type, ...]] = (type, types.FunctionType, types.BuiltinFunctionType)


def _of_framework(processor: Any, kind: type) -> str:
    """What a framework's processor is called after; empty where its class's name has to do."""
    found = (_attribute(processor, name) for name in CONFIGURATIONS)
    configuration = next((one for one in found if one is not None), None)
    if (configuration is None and _telling(kind.__name__)) or not _is_of_framework(kind):
        return ""
    return next(filter(None, _candidates(configuration, kind)), "")


def _candidates(configuration: Any, kind: type) -> Iterator[str]:
    """Names of the configuration and of the workflow, the best one first."""
    if configuration is not None:
        yield _text(configuration, "name")
        yield _of_file(configuration) or _of_file(_file_of_command())
        workflow = _attribute(configuration, "workflow")
        yield _telling(workflow.__name__ if issubclass(type(workflow), type) else _line_of(workflow))
    yield _telling(kind.__name__)
    if kind.__module__ not in _SCRIPTS:
        yield _telling(kind.__module__.rpartition(".")[2])
        codes = (member.__code__ for member in vars(kind).values() if type(member) is types.FunctionType)
        yield from (_telling(PurePath(code.co_filename).parent.name) for code in codes)


def _is_of_framework(kind: type) -> bool:
    """Whether the class, or one that it is derived from, comes from an installed package."""
    packages = dict.fromkeys(base.__module__.partition(".")[0] for base in kind.__mro__)
    return any(_is_installed(package) for package in packages if package not in _NO_FRAMEWORKS)


def _is_installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is not None and not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts):
        return True
    import importlib.metadata  # slow to import, and few analyses come here

    try:  # installed from a folder that its developer works in
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return True


def _file_of_command() -> str | None:
    """File of the configuration among the arguments of the command."""
    words = [word for argument in sys.argv for word in argument.split("=", 1)]
    return next((value for option, value in pairwise(words) if option in OPTIONS), None)


def _of_file(path: Any) -> str:
    """Name of a configuration's file, or of its folder where that says more."""
    if not issubclass(type(path), (str, PurePath)) or (file := Path(path)).suffix not in SUFFIXES:
        return ""
    # a relative path is of no use where the script has changed its folder
    return _telling(file.stem) or _telling(file.absolute().parent.name if file.is_file() else file.parent.name)


def _telling(name: str) -> str:
    """The name, if it has a word that tells analyses apart."""
    return name if any(word.lower() not in GENERIC for word in WORDS.findall(name)) else ""


def _attribute(thing: Any, name: str) -> Any:
    """Attribute of an object, or item of a dict, without calls of its class's code; None for properties."""
    if type(thing) is dict:
        return thing.get(name)
    found = inspect.getattr_static(thing, name, None)
    if type(found) is types.MemberDescriptorType:  # a slot
        try:
            return found.__get__(thing)
        except AttributeError as error:
            raise_if_interrupted(error)
            return None
    return None if hasattr(type(found), "__get__") and not issubclass(type(found), type) else found


def _text(thing: Any, name: str) -> str:
    """Text in an attribute of an object, in one line; empty if there is none."""
    return _line_of(_attribute(thing, name))


def _line_of(text: Any) -> str:
    """A text in one line, without control characters; empty for what is no text."""
    if not issubclass(type(text), str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str.__str__(text)).split())


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
