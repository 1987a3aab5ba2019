"""Forms in which texts name hosts, users and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final

from roastcoffea.records.phases import PHASES
from roastcoffea.records.tasks import KINDS, OUTCOMES

_END = r"\s\"'`<>|"
OF_PATH: Final = rf"[^{_END}/\\:;,()\[\]{{}}*?&#]+"
"""Part of a path, up to what may be behind it in a text."""
ODD: Final = re.compile(r"[\s\"'`<>|;,()\[\]{}*&#]")
"""Characters in a path that a text could go on with."""
_IN_URL = rf"[^{_END}\\]*[^{_END}\\.,;:)\]}}]"

URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*:/)/(?:(?P<user>[^/\s@\"']*)@)?"
    rf"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^{_END}\\/:?#@,;)(}}\]]*)(?P<port>:\d+)?(?P<rest>(?:[/?#](?:{_IN_URL})?)?)"
)
PLACES: Final = re.compile(
    rf"(?P<url>{re.sub('[?]P<[a-z]+>', '?:', URL.pattern)})"
    r"|(?P<subject>(?:/[A-Z]{1,2}=[^/\"'\n,;()]+){2,})"
    r"|(?P<quote>[\"'])(?P<quoted>(?:~[\w.-]*|\.{1,2}|[A-Za-z]:)?[/\\][^\"'\n]*[/\\][^\"'\n]*)(?P=quote)"
    rf"|(?P<windows>\b[A-Za-z]:(?:\\{OF_PATH})+\\?)"
    rf"|(?P<path>(?<![\w./~*<@-])(?:~[\w.-]*|\.{{1,2}})?(?:/+{OF_PATH}){{2,}}/*)"
)
"""URLs, subjects of certificates, and paths in a text."""

LOOPBACK: Final = re.compile(r"127\.[\d.]+|::1?|0\.0\.0\.0|localhost(?:\.localdomain)?|\*\*\*", re.IGNORECASE)
"""What means no host in particular."""

_COMMON = "ch de fr it uk es edu gov org net com eu nl pl cz jp cn kr tw ca au br mil hu ro sk fi dk gr tr ru ua in"
_INNER = "local internal lan localdomain intra corp private"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_TOP = "|".join((*_COMMON.split(), *_INNER.split()))
HOSTS: Final = (
    r"(?P<v4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w))"
    r"|(?P<v6>(?<![\w:.])(?=[A-Fa-f:]*\d)(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4}|\d{1,3}(?:\.\d{1,3}){3})?(?![\w:]))"
    rf"|(?P<name>(?<![\w.-])(?:{_LABEL}\.){{2,}}(?:{_TOP})(?![\w-]|\.\w))"
)
"""Addresses, and names of hosts that nothing but their form tells; a module of Python has no such ending."""

USERS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"[/\\](?:home|homes|users?|people)[/\\]+(?:rucio[/\\])?(?:[a-z][/\\])?(?P<user>[^/\\:\"'\n<>|*?]+)",
        r"/home-[a-z]/(?P<user>[\w.-]+)",
        r"~(?P<user>[a-z][\w.-]+)/",
        r"\buser\.(?P<user>[a-z][\w-]+):",
        r"\buser(?:name)?=(?P<user>[a-z][\w.-]+)",
        r"\bjupyter-(?P<user>[a-z][\w.-]+)",
        r"/CN=(?P<user>[^/\d\n\"'=][^/\n\"'=]*)",
        r"(?P<user>[\w.+-]+)@(?P<host>(?:[\w-]+\.)+[a-z]{2,})",
    )
)
"""Where texts name a user."""

PUBLIC: Final = re.compile(r"(?:[\w-]+\.)*(?:readthedocs\.io|dask\.org)", re.IGNORECASE)
"""Hosts of documentation, to which messages refer."""

WITHOUT_PATH: Final = frozenset(("tcp", "tls", "inproc", "ucx", "ws", "wss"))
"""Schemes of Dask's addresses."""

KEPT: Final = re.compile(
    r"(?:^|/)(?P<kept>(?:site|dist)-packages/|python3\.\d+/"
    r"|store/(?:mc|data|hidata|himc|relval|express)/|rucio/(?:mc|data)\w*/|eos/opendata/)"
)
"""Beginnings of paths that are the same everywhere: installed packages, and the experiments' own datasets."""
OF_PACKAGES: Final = ("site-packages/", "dist-packages/")
OF_USERS: Final = re.compile(r"(?:^|/)(?P<kept>store/user/(?:rucio/)?)(?P<user>[^/]+)/")

SHORTEST: Final = 3
SHORTEST_LABEL: Final = 5
"""Letters of a name, and of the first label of a host, that is looked for in texts."""

_WORDS: Final = (
    "admin analysis awkward batch bytes cache chunk chunks client cluster coffea common count cpu dask data "
    "dataset default demo distributed error event events execute failed file files finished gpu group guest "
    "head here home host input interactive jets job jobs jovyan local localhost login master mc memory merge "
    "metrics network nobody node none number numpy output path pool processor prod public python queue read "
    "redirector results roastcoffea root run rucio scheduler scratch seconds server share shared site skim slot "
    "store storage system task test thread time tmp total tree true type uproot user users value work worker "
    "workers write xrootd "
)
WORDS: Final = frozenset((*KINDS, *OUTCOMES, *(phase.name for phase in PHASES), *_WORDS.split()))
"""Words that are replaced where a host or a user is named, and stay words in other texts."""


def is_address(name: str) -> bool:
    """Whether it is an IPv4 or IPv6 address."""
    try:
        ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def is_telling(name: str, shortest: int = SHORTEST) -> bool:
    """Whether a name can be looked for in texts: it is long enough, and no common word or number."""
    return len(name) >= shortest and name.lower() not in WORDS and not name.isdigit()


def any_of(names: Iterable[str]) -> str:
    """Expression that finds the longest of these names.

    Examples
    --------
    >>> any_of(["node1", "node12", "mary"])
    '(?:mary|node1(?:2)?)'
    """
    tree: dict[str, Any] = {}
    for name in names:
        branch = tree
        for letter in name:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return _expression(tree)


def _expression(tree: dict[str, Any]) -> str:
    """Expression of names that have been merged where they begin alike."""
    parts = []
    for letter in sorted(tree):
        if letter:
            prefix, branch = letter, tree[letter]
            while len(branch) == 1 and "" not in branch:
                ((following, branch),) = branch.items()
                prefix += following
            parts.append(re.escape(prefix) + ("" if list(branch) == [""] else _expression(branch)))
    return f"(?:{'|'.join(parts)})" + ("?" if "" in tree else "")
