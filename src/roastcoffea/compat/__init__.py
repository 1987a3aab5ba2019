"""Compatibility with version 0.1.2: its files, dictionaries, data shapes and names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def older_keywords(**present: str) -> Callable[[Function], Function]:
    """Decorator that lets a function accept older keyword names.

    Parameters
    ----------
    **present
        Current keyword for each older keyword.
    """

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for older in present.keys() & kwargs.keys():
                if (name := present[older]) in kwargs:
                    raise TypeError(f"{function.__name__}() takes either {name}= or its older name {older}=, not both")
                kwargs[name] = kwargs.pop(older)
            return function(*args, **kwargs)

        called.older_keywords = present  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorated
