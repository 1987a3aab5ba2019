"""Masking of secrets (passwords, tokens, signatures) in strings before they are stored.

Terminal control characters are stored unchanged and escaped for display; see `neutral`.

`PATTERNS` lists the built-in patterns, and `add_pattern` adds a custom pattern. This module may be pickled by value, so
the expressions are plain strings; `re` caches the compiled patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import is_
from typing import Any, Final, NamedTuple

MASK: Final = "***"

SECRET: Final = "secret"
"""Name of the regular expression group to mask; without this group, the whole match is masked."""

LOOK: Final = 10
"""Length of text to search, as a multiple of the length to keep."""

CUT: Final = " [...] "

KEY_BEGINS: Final = "-----BEGIN "
KEY_ENDS: Final = "-----END"
"""Markers around a PEM key, which may be longer than the text searched."""

DEEPEST: Final = 64

_KEYS = r"(?:access|account|api|auth|private|secret|session|shared)[-_]?key(?:[-_]?id)?"
_SECRET_NAME = (
    rf"[\w.-]*(?:password|passwd|passphrase|secret|token|authz|authorization|macaroon|cookie|cap\.(?:sym|msg)|{_KEYS})"
)
"""Names that mark any following value as a secret."""

_SIGNATURE = r"[\w.-]*(?:signature|credentials?)"
"""Names that mark a secret before an equals sign, in quotes and in URL queries, but not before a colon."""

_SHORT_NAME = r"(?:auth|GoogleAccessId|jwt|key|pass|pwd|sig)"
"""Names that mark a secret only in quotes and in URL queries, because they are common words elsewhere."""

_OPTION = rf"--(?:{_SECRET_NAME}|pass|pwd)"

_ANY_NAME = rf"(?:{_SECRET_NAME}|{_SIGNATURE}|{_SHORT_NAME})"
_BEGINNING = r"(?<![\w./-])"

_QUOTE = r"\\{0,8}[\"']"
_QUOTED_NAME = (
    rf"(?P<quote>{_QUOTE}){_ANY_NAME}(?P=quote)\s*(?::|=>|=)|(?:\(|(?<=\[)\[)[bru]?(?P<of_pair>{_QUOTE}){_ANY_NAME}(?P=of_pair)\s*,"
    rf"|(?P<of_option>{_QUOTE}){_OPTION}(?P=of_option)\s*,?"
)
_QUOTED_PASS = rf"pass[ \t]*=(?![ \t]*{_QUOTE}(?:\d+|none|null|true|false)[\\\"'])"
_SCHEME = r"(?:(?:basic|bearer|digest|negotiate|token)(?:[ \t]|%20)+)?"
_BRACKETS = r"[(\[{](?:\"[^\"]*\"|'[^']*'|,\s*|[^)\]}\"'\s,])*"
_WORD = r"(?:[^\s\"']|[\"'](?=\w))*"
_COOKIES = (
    rf"(?:=(?P<around>{_QUOTE})(?:(?!(?P=around))[^\r\n])*(?P=around)"
    r"|[\"'](?=\w)|(?!\\{1,8}[\"'nr])[^\r\n\"'])+"
)
"""A cookie header's value: everything up to the end of the line or the closing quote."""
_OTHERWISE = rf"(?:none|null|true|false)\b|\*\*\*|[bru]?{_QUOTE}"
"""Values that are not secrets or are already masked."""


STEERING: Final = r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
"""Characters that control a terminal, end a line invisibly, or reverse the text direction."""


class Pattern(NamedTuple):
    """Pattern for one kind of secret; it is applied only to strings that contain one of its signs."""

    name: str
    signs: tuple[str, ...]
    expression: str


PATTERNS: Final = (
    Pattern("PEM block", (KEY_BEGINS,), r"(?s)-----BEGIN [^-]+-----(?P<secret>.+?)(?:-----END|\Z)"),
    Pattern("user and password in a URL", ("@",), r"://(?P<secret>[^/?#\s\"<>]+)@"),
    Pattern(
        "password with slashes or spaces in a URL",
        ("@",),
        r"://(?P<secret>[^/?#\s\"<>:@]+:(?!\d{1,5}[/?#\s]|\s|//)(?:(?!://)[^\"'<>@\r\n]){1,256})@(?=[\w.-]+[:/])",
    ),
    Pattern(
        "user and password in an encoded URL",
        ("%40", "%25"),
        r"(?i)%(?:25)*3A(?:%(?:25)*2F){2}(?P<secret>(?:(?!%(?:25)*2F)[^/?#\s\"<>])+?)%(?:25)*40",
    ),
    Pattern("password before a host", ("@",), r"(?a)(?<![\w/.+-])[\w.+-]+:(?P<secret>[^\s/@\"']{1,256})@(?=\w)"),
    Pattern(
        "parameter of a URL",
        ("=", "%3", "%25"),
        rf"(?ia)(?:[?&]|%(?:25)*(?:3F|26)){_ANY_NAME}(?:=|%(?:25)*3D)(?P<secret>[^&\s\"'<>#]+)",
    ),
    Pattern(
        "cookies",
        ("ookie:", "ookie :", "OOKIE:"),
        rf"(?ia){_BEGINNING}[\w.-]*cookie[ \t]*:[ \t]*(?=[^\s\"'=;]{{0,1000}}[=;])(?P<secret>{_COOKIES})",
    ),
    Pattern(
        "option in quotes",
        ("'", '"'),
        rf"(?ias)(?:{_QUOTED_NAME}|(?<![\w-]){_OPTION}[ \t]+"
        rf"|{_BEGINNING}(?:(?:{_SECRET_NAME}|{_SIGNATURE}|auth)[ \t]*[=:]|{_QUOTED_PASS}))"
        rf"[ \t]*[bru]?(?P<open>{_QUOTE})(?P<secret>(?:(?!(?P=open))(?:\\.|[^\\]))+)",
    ),
    Pattern(
        "option or header",
        ("=", "%3", ": ", " :", "':", '":', "oken:", "assword:", "ecret:", "ization:"),
        rf"(?ia)(?:{_QUOTED_NAME}|{_BEGINNING}(?:{_SECRET_NAME}[ \t]*(?:=|:|%3D)|(?:{_SIGNATURE}|auth)=))"
        rf"[ \t]*(?!{_OTHERWISE})(?=\S)(?P<secret>(?:{_BRACKETS}|{_SCHEME}){_WORD})",
    ),
    Pattern(
        "option of a command",
        ("--",),
        rf"(?ia)(?<![\w-]){_OPTION}[ \t]+(?!-|{_OTHERWISE})"
        r"(?!(?:and|for|has|in|is|must|needs|not|of|option|or|to|was|with)\b)"
        r"(?P<secret>[^\s\"',;\])]+)",
    ),
    Pattern(
        "password without a name of its own",
        ("pass=",),
        rf"(?ia){_BEGINNING}pass=(?!{_OTHERWISE}|\d+\b)(?P<secret>{_WORD})",
    ),
    Pattern("XML element", ("</",), rf"(?ia)<(?:{_SECRET_NAME}|{_SIGNATURE})\w*>(?P<secret>[^<]+)"),
    Pattern(
        "bearer token",
        ("earer ", "earer%20", "EARER "),
        r"(?ia)\bbearer(?:\s|%20)+(?!(?:auth\w*|realm|scheme|token)\b)(?P<secret>[\w.~+/=%-]{8,})",
    ),
    Pattern("JSON Web Token", ("eyJ",), r"(?a)(?<![\w-])eyJ[\w-]{8,}(?:\.[\w-]*)*"),
    Pattern(
        "token with a prefix",
        ("ghp_", "gho_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "hf_", "sk-"),
        r"(?a)(?<![\w-])(?:gh[oprsu]_|github_pat_|glpat-|xox[bp]-|hf_(?=[^\W_]{20})|sk-(?=[\w-]*\d))[\w-]{20,}",
    ),
    Pattern("capability of EOS", ("zteos64",), r"(?ia)zteos64(?::|%3A)(?P<secret>[\w+/=%.~-]+)"),
    Pattern("macaroon", ("xvY2F0aW9u",), r"(?a)MDA\w{3}xvY2F0aW9u[\w+/=-]*"),
)
"""Built-in patterns, in the order in which they are applied."""

_SIGNS = [sign for pattern in PATTERNS for sign in pattern.signs]
HINTS = tuple(dict.fromkeys(next((short for short in "@%='\"< " if short in sign), sign) for sign in _SIGNS))
"""Substrings that cover all signs: each sign contains at least one of them. Searching for single characters is
fastest."""

_added: dict[str, str] = {}

Added = tuple[tuple[str, str], ...]
"""Name and expression of each pattern added by the user."""


def add_pattern(name: str, expression: str) -> None:
    """Mask matches of a regular expression in everything recorded from now on.

    Workers receive the pattern with their tasks. An earlier pattern with the same name is replaced.

    Parameters
    ----------
    name : str
        Name of the pattern.
    expression : str
        Regular expression. If it has a group named `secret`, as in `r"sid:(?P<secret>[0-9a-f]+)"`, only that group is
        masked; otherwise, the whole match is masked.

    Raises
    ------
    re.error
        If the expression cannot be compiled.

    Examples
    --------
    >>> add_pattern("ticket", r"TGT-\\w+")
    >>> redacted("door refused TGT-4711abc")
    'door refused ***'
    """
    re.compile(expression)
    _added[name] = expression


def remove_pattern(name: str) -> None:
    """Remove a pattern added by `add_pattern`; existing records do not change.

    Parameters
    ----------
    name : str
        Name passed to `add_pattern`.

    Raises
    ------
    ValueError
        If no pattern was added under this name. Built-in patterns cannot be removed.
    """
    if name not in _added:
        raise ValueError(f"no pattern named {name!r} was added; added so far: {', '.join(_added) or 'none'}")
    del _added[name]


def added_patterns() -> Added:
    """Patterns added in this process, for passing to `redacted` in another process."""
    return tuple(_added.items())


def redacted(text: str, added: Added | None = None) -> str:
    """Mask secrets in a string.

    Parameters
    ----------
    text : str
        Text such as a path, a URL or an error message.
    added : tuple, optional
        Patterns to apply in addition to the built-in patterns; by default, the patterns added in this process.

    Examples
    --------
    >>> redacted("root://jane:pw@eos.example.org:1094//store/a.root?authz=abc&xrd.n=2")
    'root://***@eos.example.org:1094//store/a.root?authz=***&xrd.n=2'
    """
    for hint in HINTS:
        if hint in text:
            for _, signs, known in PATTERNS:
                for sign in signs:
                    if sign in text:
                        text = re.sub(known, _masked, text)
                        break
            break
    for _, expression in _added.items() if added is None else added:
        text = re.sub(expression, _masked, text)
    return text


def neutral(text: str) -> str:
    r"""Escape terminal control characters in a string.

    Examples
    --------
    >>> print(neutral("\x1b[31mred"))
    \x1b[31mred
    """
    return re.sub(STEERING, lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def redacted_beginning(text: str, length: int, added: Added | None = None) -> str:
    """Beginning of a string, with secrets masked; a secret that is cut off at the end is omitted."""
    clean = redacted(text[: LOOK * length], added)
    if len(clean) < length and len(text) > LOOK * length:
        return clean.rpartition(" ")[0]
    return clean[:length]


def redacted_ends(text: str, length: int, added: Added | None = None) -> str:
    """Mask secrets, and truncate long strings in the middle.

    A quarter of the length is used for the end. As in `redacted_beginning`, only a limited part of a long string is
    searched, and secrets that are cut off at the limit are omitted.
    """
    searched, tail = LOOK * length, length // 4
    if len(text) > 2 * searched:
        end = text[-searched:]
        if (key := end.find(KEY_ENDS)) >= 0 and KEY_BEGINS not in end[:key]:
            end = end[key:]
        beginning = redacted_beginning(text, length - tail - len(CUT), added)
        clean = f"{beginning}{CUT}{redacted(end, added).partition(' ')[2]}"
    else:
        clean = redacted(text, added)
    return clean if len(clean) <= length else f"{clean[: length - tail - len(CUT)]}{CUT}{clean[-tail:]}"


def redacted_each(texts: Iterable[str | None]) -> list[str | None]:
    """Mask secrets in each string; identical strings are searched only once."""
    listed = list(texts)
    clean = {text: None if text is None else redacted(text) for text in set(listed)}
    return [clean[text] for text in listed]


def _masked(found: re.Match[str]) -> str:
    start, stop = found.span(SECRET if SECRET in found.re.groupindex else 0)
    if start < 0:
        return found[0]
    begin = found.start()
    return f"{found[0][: start - begin]}{MASK}{found[0][stop - begin :]}"


def redacted_values(value: Any, added: Added | None = None, levels: int = DEEPEST) -> Any:
    """Mask secrets in a value's strings; return the same object if none are found.

    Nested dictionaries, lists, tuples and sets are searched to a depth of `levels`. In a dictionary, a string is also
    masked if its key is the name of a secret.
    """
    if isinstance(value, str):
        text = redacted(value, added)
        return value if text == value else text
    if not levels:
        return value
    levels -= 1
    if isinstance(value, dict):
        pairs = list(dict.items(value))
        clean: list[Any] = [
            (
                redacted_values(name, added, levels),
                MASK if is_secret(name, item) else redacted_values(item, added, levels),
            )
            for name, item in pairs
        ]
        is_same = all(one[0] is other[0] and one[1] is other[1] for one, other in zip(clean, pairs, strict=True))
        return value if is_same else dict(clean)
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            items = list(kind.__iter__(value))
            clean = [redacted_values(item, added, levels) for item in items]
            return value if all(map(is_, clean, items)) else kind(clean)
    return value


def is_secret(name: Any, value: Any) -> bool:
    """Whether a dictionary value is a secret, judging by its key."""
    is_text = isinstance(name, str) and isinstance(value, (str, bytes))
    return is_text and re.fullmatch(rf"(?ia){_ANY_NAME}", name) is not None
