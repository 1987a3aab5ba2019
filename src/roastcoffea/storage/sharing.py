"""Runs for publication, in which hosts, users and paths have made-up names."""

from __future__ import annotations

import getpass
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from roastcoffea.records.chunks import PHASES
from roastcoffea.records.run import Host, Run, RunnerCall
from roastcoffea.records.workers import KINDS as TASK_KINDS
from roastcoffea.records.workers import OUTCOMES
from roastcoffea.storage.document import TABLES
from roastcoffea.storage.reading import LEAVES, plain

_END = r"\s\"'`<>|"
OF_PATH: Final = rf"[^{_END}/\\:;,()\[\]{{}}*?&#]+"
ODD: Final = re.compile(r"[\s\"'`<>|;,()\[\]{}*&#]")
"""Characters that may belong to a path or to the surrounding text."""
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
"""URLs, certificate subjects and paths in a string."""

LOOPBACK: Final = re.compile(r"127\.[\d.]+|::1?|0\.0\.0\.0|localhost(?:\.localdomain)?|\*\*\*", re.IGNORECASE)
"""Addresses that do not identify a host."""

_COMMON = "ch de fr it uk es edu gov org net com eu nl pl cz jp cn kr tw ca au br mil hu ro sk fi dk gr tr ru ua in"
_INNER = "local internal lan localdomain intra corp private"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_TOP = "|".join((*_COMMON.split(), *_INNER.split()))
HOSTS: Final = (
    r"(?P<v4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w))"
    r"|(?P<v6>(?<![\w:.])(?=[A-Fa-f:]*\d)(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4}|\d{1,3}(?:\.\d{1,3}){3})?(?![\w:]))"
    rf"|(?P<name>(?<![\w.-])(?:{_LABEL}\.){{2,}}(?:{_TOP})(?![\w-]|\.\w))"
)
"""Addresses, and host names recognisable only by their suffix. No Python module name has such a suffix."""

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

PUBLIC: Final = re.compile(r"(?:[\w-]+\.)*(?:readthedocs\.io|dask\.org)", re.IGNORECASE)
"""Documentation hosts that occur in messages."""

KEPT: Final = re.compile(
    r"(?:^|/)(?P<kept>(?:site|dist)-packages/|python3\.\d+/"
    r"|store/(?:mc|data|hidata|himc|relval|express)/|rucio/(?:mc|data)\w*/|eos/opendata/)"
)
"""Path prefixes that are the same everywhere: installed packages and the experiments' datasets."""
OF_PACKAGES: Final = ("site-packages/", "dist-packages/")
OF_USERS: Final = re.compile(r"(?:^|/)(?P<kept>store/user/(?:rucio/)?)(?P<user>[^/]+)/")

_WORDS: Final = (
    "admin analysis awkward batch bytes cache chunk chunks client cluster coffea common count cpu dask data "
    "dataset default demo distributed error event events execute failed file files finished gpu group guest "
    "head here home host input interactive jets job jobs jovyan local localhost login master mc memory merge "
    "metrics network nobody node none number numpy output path pool processor prod public python queue read "
    "redirector results roastcoffea root run rucio scheduler scratch seconds server share shared site skim slot "
    "store storage system task test thread time tmp total tree true type uproot user users value work worker "
    "workers write xrootd "
)
WORDS: Final = frozenset((*TASK_KINDS, *OUTCOMES, *(phase.name for phase in PHASES), *_WORDS.split()))
"""Words that are replaced only if they clearly name a host or a user."""


def is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def any_of(names: Iterable[str]) -> str:
    """Return a regular expression that matches these names, preferring the longest.

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
    parts = []
    for letter in sorted(tree):
        if letter:
            prefix, branch = letter, tree[letter]
            while len(branch) == 1 and "" not in branch:
                ((following, branch),) = branch.items()
                prefix += following
            parts.append(re.escape(prefix) + ("" if list(branch) == [""] else _expression(branch)))
    return f"(?:{'|'.join(parts)})" + ("?" if "" in tree else "")


HOST: Final = re.compile(r"(?P<host>\[.*\]|[^/:@\s\[\]]+)(?P<rest>(?:[/:].*)?)")
"""Host name followed by a port or a process ID."""

BEHIND: Final = re.compile(r"(?<=/)(?P<scheme>[A-Za-z]\w*):(?P<slashes>/{1,2})(?=[^/])")
"""Start of the origin's URL within a cache URL. One of the two slashes may be missing."""

TELLING: Final = re.compile(r"[/\\@=~]|user\.|jupyter-", re.IGNORECASE)
"""Signs of a name. Strings without any of these signs contain no names to collect."""

CHAIN: Final = re.compile(r"[\w:]*")
"""Start of a chained fsspec URL."""

WHOLE: Final = re.compile(r"[\w:.+-]*://|[A-Za-z]:\\|[~.\w-]*/")
"""Start of a field that consists of a single URL or path."""

NUMBERS: Final = re.compile(r"[\d/:.]*")

CUT: Final = re.compile(r"[\w.-]{3,}$")
LONG: Final = 100
"""Minimum length of a string that may have been truncated in the middle of a name."""

PLAIN: Final = re.compile(r"[a-z]+|\d+")
"""Names that are only recognised as whole words."""


class Pseudonyms:
    """The names in a run, and their replacements.

    All strings are scanned before any string is replaced, because a name may occur alone before the context that
    identifies its kind. Names are numbered in the order of discovery.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        self._known: dict[str, Callable[[str], str]] = {}
        """Names to find in strings, in lower case, with their replacements."""
        self._odd: set[str] = set()
        """Paths and folders with characters that make their end ambiguous in text."""
        try:
            self._learn_user(getpass.getuser())
        except (ImportError, KeyError, OSError):  # the process has no login name
            return

    def numbered(self, kind: str, name: str) -> str:
        """Return the pseudonym for a name of this kind, such as site-1."""
        numbers = self._numbers.setdefault(kind, {})
        return f"{kind}-{numbers.setdefault(name, len(numbers) + 1)}"

    # learning

    def learn(self, kind: str, text: str) -> str:
        """Collect the names in a string of this kind, and return the string."""
        if kind == "host" and "://" not in text:
            if found := HOST.fullmatch(text):
                self._learn_host(found["host"])
        elif kind in {"job", "queue", "site"}:
            self._learn(text, lambda name: self.numbered(kind, name))
        elif kind in {"file", "place"} and ODD.search(text) and WHOLE.match(text):
            folder, _, name = text.rpartition("/")
            self._odd.add(text if ODD.search(name) else folder)
        if TELLING.search(text):
            for url in URL.finditer(text):
                self._learn_host(url["host"])
                if behind := BEHIND.search(url["rest"]):
                    self.learn(kind, _url_behind(behind, url["rest"]))
            for pattern in USERS:
                for found in pattern.finditer(text):
                    self._learn_user(found["user"])
                    self._learn_host(found.groupdict().get("host", ""))
        return text

    def _learn(self, name: str, replace: Callable[[str], str], shortest: int = 3) -> None:
        """Collect a name unless it is too short to search for, is a common word, or is a number."""
        if len(name) >= shortest and name.lower() not in WORDS and not name.isdigit():
            self._known.setdefault(name.lower(), replace)

    def _learn_host(self, name: str) -> None:
        label, _, domain = name.partition(".")
        if not name or LOOPBACK.fullmatch(name) or PUBLIC.fullmatch(name):
            return
        self.host(name)
        self._learn(name, self.host)
        if domain and not is_address(name):
            self._learn(label, self.host, 5)
            if "." in domain:
                self._learn(domain, lambda text: self.numbered("domain", text.lower()))

    def _learn_user(self, name: str) -> None:
        self._learn(name.strip(), self.user)

    # replacing

    def replaced(self, kind: str, text: str) -> str:
        """Replace the names in a string.

        `kind` is "host", "file", "place" (in code), "uuid", "job", "queue" or "site". Strings of any other kind are
        ordinary text.
        """
        match kind:
            case "host":
                return self._of_host(text)
            case "file":
                return self._of_file(text)
            case "place":
                return self.path(text) if text.startswith(("/", "\\")) or text[1:2] == ":" else self._words(text)
            case "uuid":  # ROOT UUIDs contain the address of the machine that wrote the file
                return f"{int(self.numbered(kind, text).rpartition('-')[2]):032x}"
            case "job" | "queue" | "site":
                return self.numbered(kind, text)
        return self._text(text)

    def host(self, name: str) -> str:
        """Replace the first label and the domain of a host name separately."""
        given, name = name, name.strip("[]").lower()
        if LOOPBACK.fullmatch(name) or not name:
            return given
        kind = next((word for word in ("xcache", "servicex") if word in name), "host")
        label, _, domain = (name, "", "") if is_address(name) else name.partition(".")
        return self.numbered(kind, label) + (f".{self.numbered('domain', domain)}" if domain else "")

    def user(self, name: str) -> str:
        return self.numbered("user", name.strip().lower())

    def path(self, path: str) -> str:
        """Replace a path's folders as a whole, but keep its last component and standard locations."""
        path, mark, query = path.partition("?")
        if "\\" in path:
            drive, folder, name = re.fullmatch(r"([A-Za-z]:)?(.*\\)?([^\\]*)", path, re.DOTALL).groups("")  # type: ignore[union-attr]
            return f"{drive}\\{self.numbered('path', drive + folder)}\\{self._text(name)}"
        start = path[: len(path) - len(path.lstrip("/"))]
        folder, name = self._parts(path)
        inner = folder.strip("/")
        beginning = f"{start}{self.numbered('path', inner)}/" if inner else start
        return f"{beginning}{name}{mark}{self._words(query)}"

    def _parts(self, path: str) -> tuple[str, str]:
        """Split a path into the folders to replace, and the remaining part to keep."""
        if found := OF_USERS.search(path):
            return path[: found.start("kept")], f"{found['kept']}{self.user(found['user'])}/" + self.path(
                path[found.end() :]
            )
        if found := KEPT.search(path):
            kept = found["kept"]
            end = found.end() if kept in OF_PACKAGES else found.start("kept")
            return path[:end], self._words(path[end:])
        folder, _, name = path.rstrip("/").rpartition("/")
        return folder, self._words(name) + path[len(path.rstrip("/")) :]

    def _of_host(self, text: str) -> str:
        found = HOST.fullmatch(text)
        if "://" in text or found is None:
            return self._text(text)
        return self.host(found["host"]) + self._numbers_behind(found["rest"])

    def _numbers_behind(self, rest: str) -> str:
        """Keep a numeric hostname suffix (port, process ID or worker number), and replace names in other suffixes."""
        return rest if NUMBERS.fullmatch(rest) else self._text(rest)

    def _of_file(self, text: str) -> str:
        found = URL.search(text)
        if found is None:
            return self.path(text)
        if not CHAIN.fullmatch(text[: found.start()]):
            return self._text(text)
        return text[: found.start()] + self._url(found, text[found.start("rest") :])

    def _url(self, found: re.Match[str], rest: str) -> str:
        """Replace the names in a URL. `rest` is the text after the host and the port."""
        if PUBLIC.fullmatch(found["host"]):
            return found[0]
        scheme = found["scheme"]
        user = "" if found["user"] is None else f"{'***' if found['user'] == '***' else self.user(found['user'])}@"
        beginning = f"{scheme}/{user}{self.host(found['host'])}{found['port'] or ''}"
        if scheme in {"tcp:/", "tls:/", "inproc:/", "ucx:/", "ws:/", "wss:/"}:  # Dask's addresses
            return beginning + self._numbers_behind(rest)
        behind = BEHIND.search(rest)
        if behind is None:
            return beginning + self.path(rest)
        inner = self._of_file(_url_behind(behind, rest)).replace("://", f":{behind['slashes']}", 1)
        return f"{beginning}{rest[: behind.start()]}{inner}"

    def _text(self, text: str) -> str:
        if "/" not in text and "\\" not in text and len(text) < LONG:
            return self._words(text)
        parts, end = [], 0
        for found in self._places.finditer(text):
            parts += [self._words(text[end : found.start()]), self._place(found)]
            end = found.end()
        whole = "".join([*parts, self._words(text[end:])])
        return self._uncut(whole) if len(text) >= LONG else whole

    def _place(self, found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind == "odd":
            url = URL.search(found[0])
            whole = url is None or not CHAIN.fullmatch(found[0][: url.start()])
            return self.path(found[0]) if whole else self._of_file(found[0])
        if kind == "url":
            url = URL.fullmatch(found[0])
            return found[0] if url is None else self._url(url, url["rest"])
        if kind == "subject":
            return f"/CN={self.user(found[0])}"
        if found["quoted"] is not None:
            return f"{found['quote']}{self.path(found['quoted'])}{found['quote']}"
        return self.path(found[0])

    @cached_property
    def _places(self) -> re.Pattern[str]:
        """Pattern for paths and URLs recognisable by their format, and for the paths with an ambiguous end."""
        odd = sorted(filter(None, self._odd))
        return re.compile(f"(?P<odd>{any_of(odd)}(?:/{OF_PATH})?)|{PLACES.pattern}") if odd else PLACES

    def _words(self, text: str) -> str:
        """Replace the names in text that contains no URLs, paths or certificate subjects."""
        return self._pattern.sub(self._word, text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        plain = [name for name in self._known if PLAIN.fullmatch(name)]
        others = [name for name in self._known if not PLAIN.fullmatch(name)]
        parts = [HOSTS]
        if others:
            parts.insert(0, rf"(?P<known>{any_of(others)})(?![A-Za-z0-9])")
        if plain:
            parts.append(rf"(?P<plain>(?<![A-Za-z0-9]){any_of(plain)}(?![A-Za-z0-9]))")
        return re.compile("|".join(parts), re.IGNORECASE)

    def _word(self, found: re.Match[str]) -> str:
        name = found[0]
        if replace := self._known.get(name.lower()):
            return replace(name)
        if found.lastgroup == "name":
            return name if PUBLIC.fullmatch(name) else self.host(name)
        return self.host(name) if is_address(name) else name

    def _uncut(self, text: str) -> str:
        """Replace the last word if it is the beginning of a known name."""
        found = CUT.search(text)
        if found is None:
            return text
        begun = found[0].lower()
        name = next((name for name in sorted(self._known) if name.startswith(begun)), None)
        return text if name is None else text[: found.start()] + self._known[name](name)


def _url_behind(behind: re.Match[str], rest: str) -> str:
    return f"{behind['scheme']}://{rest[behind.end() :]}"


TEXT: Final = "text"
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("worker", "host", "node", "client_host", "endpoint", "left_endpoint"), "host"),
    **dict.fromkeys(("job", "queue", "site", "uuid", "file"), ""),
    "files": "place",
    **dict.fromkeys(("other_files", "written_files"), "file"),
    "span_metrics_per_worker": "host",
}
"""Maps each field to the kind of its strings; empty if the kind is the field's name. Other fields contain ordinary
text."""
VALUES: Final = frozenset(column.name for columns in TABLES.values() for column in columns if column.kind == "values")

Convert = Callable[[str, str], str]


def shared(run: Run) -> Run:
    """Return the run with made-up names for hosts, users and paths. A shared run is returned unchanged.

    Identical names stay identical, different names stay different, and addresses keep their ports. Numbers do not
    change. Names of datasets, sections, processors, branches, functions and the run are kept, except for hosts and
    users within them.
    """
    if run.shared:
        return run
    names = Pseudonyms()
    for part in (run.environment, run):  # so that the client is on host-1
        _converted(part, "", names.learn)
    found: Run = _converted(run, "", names.replaced)
    calls = tuple(replace(call, fileset=_fingerprint(found.asked, call)) for call in found.calls)
    return replace(found, calls=calls, shared=True)


def _kind(name: str) -> str:
    return KINDS.get(name, TEXT) or name


def _converted(value: Any, name: str, convert: Convert) -> Any:
    """Convert the strings in a field's value.

    Numbers and times do not change. The keys of a mapping serve as field names. Any other value becomes the string that
    would be saved for it.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSUV":
        value = value.tolist()
    if isinstance(value, str):
        return convert(_kind(name), str(value))
    if isinstance(value, pa.Table):
        return _table(value, convert)
    if is_dataclass(value) and not isinstance(value, type):
        known = {each.name: found for each in fields(value) if (found := getattr(value, each.name)) is not None}
        names = {"name": "host"} if isinstance(value, Host) else {}
        return replace(
            value, **{each: _converted(found, names.get(each, each), convert) for each, found in known.items()}
        )
    if isinstance(value, Mapping):
        return {
            _converted(key, name, convert): _converted(item, key if isinstance(key, str) else "", convert)
            for key, item in value.items()
        }
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(_converted(item, name, convert) for item in value)
    return value if isinstance(value, (np.ndarray, *LEAVES)) else convert(TEXT, str(plain(value, name, [])))


def _table(table: pa.Table, convert: Convert) -> pa.Table:
    """Convert the strings in a table. Each distinct string in a column is converted once."""
    for place, field in enumerate(table.schema):
        kind = field.name if field.name in VALUES else _kind(field.name)
        column = table.column(place).combine_chunks()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = _column(column, kind, convert)
        table = table.set_column(place, field.with_type(column.type), column)
    return table


def _column(column: pa.Array, kind: str, convert: Convert) -> pa.Array:
    if types.is_list(column.type):
        # flatten() omits values in null rows
        values = _column(column.flatten(), kind, convert)
        lengths = column.value_lengths().fill_null(0)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy())]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, column.type, mask=column.is_null())
    if not (types.is_string(column.type) or types.is_large_string(column.type) or types.is_dictionary(column.type)):
        return column
    known = column.dictionary_encode()
    texts = [
        json.dumps(_converted(json.loads(text), "", convert)) if kind in VALUES else convert(kind, text)
        for text in known.dictionary.to_pylist()
    ]
    return pa.array(texts, known.type.value_type).take(known.indices)


def _fingerprint(asked: pa.Table | None, call: RunnerCall) -> str | None:
    """Return the fingerprint of a call's input, computed from the made-up names.

    The recorded fingerprint is not published because it could be used to test guessed names.
    """
    if asked is None or call.fileset is None:
        return None
    columns = ("call", "dataset", "file", "tree", "uuid")
    rows = asked.select(list(columns)).to_pylist()
    files = {
        tuple(map(str, (row[name] for name in columns[1:]))) for row in rows if row["call"] == call.id and row["uuid"]
    }
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
