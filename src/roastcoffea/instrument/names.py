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

WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
GENERIC: Final = re.compile(
    "abc|abstract|analys[ei]s|base|basic|cfg|coffea|configs?|configuration|default|generic|jobs?|main|my|nano"
    "|processors?|python|run|runner|src|template|tests?|tmp|user|workflows?"
)
"""Words that tell no analysis from another."""

_NAMED: Final[tuple[type, ...]] = (type, types.FunctionType, types.BuiltinFunctionType)
_SCRIPTS: Final = ("__main__", "__mp_main__")


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
    while (kind := type(processor)) in (functools.partial, types.MethodType):
        processor = processor.func if kind is functools.partial else processor.__self__
    name = _line_of(_attribute(processor, "name")) or _line_of(_attribute(processor, "__name__"))
    if not name and issubclass(kind, _NAMED):
        name = processor.__name__
    return redacted_beginning(name or _of_framework(processor, kind) or kind.__name__, LONGEST_NAME)


def _of_framework(processor: Any, kind: type) -> str:
    """What a framework's processor is called after; empty where its class's name has to do."""
    found = (_attribute(processor, name) for name in ("cfg", "config", "configuration"))
    configuration = next((one for one in found if one is not None), None)
    if configuration is None and _telling(kind.__name__):
        return ""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    own = {*sys.stdlib_module_names, *_SCRIPTS, "coffea", "roastcoffea"}
    names = _candidates(configuration, kind) if any(map(_is_installed, packages - own)) else iter(())
    return next(filter(None, names), "")


def _candidates(configuration: Any, kind: type) -> Iterator[str]:
    """Names of the configuration and of the workflow, the best one first."""
    if configuration is not None:
        yield _line_of(_attribute(configuration, "name"))
        yield _of_file(configuration)
        # PocketCoffea's objects do not know their file
        words = [word for argument in sys.argv for word in argument.split("=", 1)]
        yield from (_of_file(value) for option, value in pairwise(words) if option in {"--cfg", "--config"})
        workflow = _attribute(configuration, "workflow")
        yield _telling(workflow.__name__ if issubclass(type(workflow), type) else _line_of(workflow))
    yield _telling(kind.__name__)
    if kind.__module__ not in _SCRIPTS:
        yield _telling(kind.__module__.rpartition(".")[2])
        codes = (member.__code__ for member in vars(kind).values() if type(member) is types.FunctionType)
        yield from (_telling(PurePath(code.co_filename).parent.name) for code in codes)


def _is_installed(package: str) -> bool:
    import importlib.metadata  # slow to import, and few analyses come here

    try:  # installed from a folder that its developer works in
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return True


def _of_file(path: Any) -> str:
    """Name of a configuration's file, or of its folder where that says more."""
    # files that people write: the pickled configuration of a batch job is named after the job
    written = (".py", ".yaml", ".yml", ".json", ".toml")
    if not issubclass(type(path), (str, PurePath)) or (file := Path(path)).suffix not in written:
        return ""
    # a relative path is of no use where the script has changed its folder
    return _telling(file.stem) or _telling((file.absolute() if file.is_file() else file).parent.name)


def _telling(name: str) -> str:
    """The name, if it has a word that tells analyses apart."""
    return name if any(not GENERIC.fullmatch(word.lower()) for word in WORDS.findall(name)) else ""


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


def _line_of(text: Any) -> str:
    """A text in one line, without control characters; empty for what is no text."""
    if not issubclass(type(text), str):
        return ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str.__str__(text)).split())


Files = Mapping[str, str]
"""Files by function, as both are called in profiles."""

_known: Final[dict[tuple[str, str], str]] = Remembered()
"""Files of functions, by module and name, as they were before."""


def files_of_functions(processor: Any) -> Files:
    """Files of the functions in the module that defines a processor; those of one name in two files are left out."""
    while isinstance(processor, functools.partial | types.MethodType):
        processor = processor.func if isinstance(processor, functools.partial) else processor.__func__
    module = (processor if isinstance(processor, types.FunctionType) else type(processor)).__module__
    found: dict[str, set[str]] = {}
    for code in _codes(module):
        name = function_of(code)
        file: str | None = code.co_filename
        if file == SENT:  # a worker in this process has put what it was sent in the place of the class's methods
            file = _known.get((module, name)) or getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            _known[module, name] = file
            found.setdefault(name, set()).add(file)
    return {name: redacted(_called(files.pop())) for name, files in found.items() if len(files) == 1}


def _codes(module: str) -> list[types.CodeType]:
    """Code of functions and methods that a module defines, and of functions inside of them."""
    members = list(vars(sys.modules.get(module, types)).values())
    kinds = [member for member in members if issubclass(type(member), type)]
    members += [member for kind in kinds if kind.__module__ == module for member in vars(kind).values()]
    found = []
    for member in members:
        of_class = isinstance(member, staticmethod | classmethod)
        function = member.__func__ if of_class else member.fget if type(member) is property else member
        if type(function) is types.FunctionType and function.__module__ == module:
            found.append(function.__code__)
    for code in found:  # which grows
        found += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


def _called(file: str) -> str:
    """A file as profiles call it; a cell of a notebook as its traceback does, such as In[3]."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    of_cell = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return of_cell[1] if of_cell else place_of(file)
