"""Made-up names for hosts, users and paths: the same for the same name, and nothing leads back."""

from __future__ import annotations

import getpass
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from typing import Final

from roastcoffea.storage.places import (
    HOSTS,
    KEPT,
    LOOPBACK,
    ODD,
    OF_PACKAGES,
    OF_PATH,
    OF_USERS,
    PLACES,
    PUBLIC,
    SHORTEST_LABEL,
    URL,
    USERS,
    WITHOUT_PATH,
    any_of,
    is_address,
    is_telling,
)

SERVICES: Final = ("xcache", "servicex")
"""Words in host names that identify caches and services."""

HOST: Final = re.compile(r"(?P<host>\[.*\]|[^/:@\s\[\]]+)(?P<rest>(?:[/:].*)?)")
"""Host in front of a port or of a process."""

BEHIND: Final = re.compile(r"(?<=/)(?P<scheme>[A-Za-z]\w*):(?P<slashes>/{1,2})(?=[^/])")
"""Beginning of the origin's URL in that of a cache, where a slash may have been lost."""

TELLING: Final = re.compile(r"[/\\@=~]|user\.|jupyter-", re.IGNORECASE)
"""Signs without which a text teaches nothing."""

CHAIN: Final = re.compile(r"[\w:]*")
"""Beginning of a chain of fsspec."""

WHOLE: Final = re.compile(r"[\w:.+-]*://|[A-Za-z]:\\|[~.\w-]*/")
"""Beginning of a URL or path that is a field of its own."""

NUMBERS: Final = re.compile(r"[\d/:.]*")

CUT: Final = re.compile(r"[\w.-]{3,}$")
LONG: Final = 100
"""Characters of a text that may have been cut in the middle of a name."""

PLAIN: Final = re.compile(r"[a-z]+|\d+")
"""Names that are only found as whole words."""


class Pseudonyms:
    """Names of one run, and those that replace them.

    It first learns all texts, as a name may stand alone before something tells that it is one. Names are numbered in
    the order in which they were learned.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        self._known: dict[str, Callable[[str], str]] = {}
        """Names to look for in texts, in small letters, with what replaces them."""
        self._odd: set[str] = set()
        """Paths and folders whose ends cannot be told from their form."""
        try:
            self._learn_user(getpass.getuser())
        except (ImportError, KeyError, OSError):  # nobody is logged in here
            return

    def numbered(self, kind: str, name: str) -> str:
        """A name of a kind, such as site-1."""
        numbers = self._numbers.setdefault(kind, {})
        return f"{kind}-{numbers.setdefault(name, len(numbers) + 1)}"

    # learning

    def learn(self, kind: str, text: str) -> str:
        """Learn the names in a text of a kind, which is returned as it is."""
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

    def _learn(self, name: str, replace: Callable[[str], str], shortest: int | None = None) -> None:
        if is_telling(name) if shortest is None else is_telling(name, shortest):
            self._known.setdefault(name.lower(), replace)

    def _learn_host(self, name: str) -> None:
        label, _, domain = name.partition(".")
        if not name or LOOPBACK.fullmatch(name) or PUBLIC.fullmatch(name):
            return
        self.host(name)
        self._learn(name, self.host)
        if domain and not is_address(name):
            self._learn(label, self.host, SHORTEST_LABEL)
            if "." in domain:
                self._learn(domain, lambda text: self.numbered("domain", text.lower()))

    def _learn_user(self, name: str) -> None:
        self._learn(name.strip(), self.user)

    # replacing

    def replaced(self, kind: str, text: str) -> str:
        """Text of a kind with other names: a "host", "file", "place" of code, "uuid", "job", "queue" or "site", else
        any text."""
        match kind:
            case "host":
                return self._of_host(text)
            case "file":
                return self._of_file(text)
            case "place":
                return self.path(text) if text.startswith(("/", "\\")) or text[1:2] == ":" else self._words(text)
            case "uuid":  # those of ROOT contain the address of the machine that wrote the file
                return f"{int(self.numbered(kind, text).rpartition('-')[2]):032x}"
            case "job" | "queue" | "site":
                return self.numbered(kind, text)
        return self._text(text)

    def host(self, name: str) -> str:
        """Name of a host: its first label and its domain are replaced by themselves."""
        given, name = name, name.strip("[]").lower()
        if LOOPBACK.fullmatch(name) or not name:
            return given
        kind = next((word for word in SERVICES if word in name), "host")
        label, _, domain = (name, "", "") if is_address(name) else name.partition(".")
        return self.numbered(kind, label) + (f".{self.numbered('domain', domain)}" if domain else "")

    def user(self, name: str) -> str:
        """Name of a user."""
        return self.numbered("user", name.strip().lower())

    def path(self, path: str) -> str:
        """Path whose folders are replaced together: its last part stays, and what is the same everywhere."""
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
        """Folders of a path, and what stays of it behind them."""
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
        """An address, or a host with what is behind it."""
        found = HOST.fullmatch(text)
        if "://" in text or found is None:
            return self._text(text)
        return self.host(found["host"]) + self._numbers_behind(found["rest"])

    def _numbers_behind(self, rest: str) -> str:
        """What is behind a host: a port, a process, the number of a worker."""
        return rest if NUMBERS.fullmatch(rest) else self._text(rest)

    def _of_file(self, text: str) -> str:
        """A URL to its end, or a path."""
        found = URL.search(text)
        if found is None:
            return self.path(text)
        if not CHAIN.fullmatch(text[: found.start()]):
            return self._text(text)
        return text[: found.start()] + self._url(found, text[found.start("rest") :])

    def _url(self, found: re.Match[str], rest: str) -> str:
        """A URL with this text behind its host and port."""
        if PUBLIC.fullmatch(found["host"]):
            return found[0]
        scheme = found["scheme"]
        user = "" if found["user"] is None else f"{'***' if found['user'] == '***' else self.user(found['user'])}@"
        beginning = f"{scheme}/{user}{self.host(found['host'])}{found['port'] or ''}"
        if scheme.removesuffix(":/") in WITHOUT_PATH:
            return beginning + self._numbers_behind(rest)
        behind = BEHIND.search(rest)
        if behind is None:
            return beginning + self.path(rest)
        inner = self._of_file(_url_behind(behind, rest)).replace("://", f":{behind['slashes']}", 1)
        return f"{beginning}{rest[: behind.start()]}{inner}"

    def _text(self, text: str) -> str:
        """Any text."""
        if "/" not in text and "\\" not in text and len(text) < LONG:
            return self._words(text)
        parts, end = [], 0
        for found in self._places.finditer(text):
            parts += [self._words(text[end : found.start()]), self._place(found)]
            end = found.end()
        whole = "".join([*parts, self._words(text[end:])])
        return self._uncut(whole) if len(text) >= LONG else whole

    def _place(self, found: re.Match[str]) -> str:
        """A URL, path or subject in a text."""
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
        """Places by their form, and those whose ends it does not tell."""
        odd = sorted(filter(None, self._odd))
        return re.compile(f"(?P<odd>{any_of(odd)}(?:/{OF_PATH})?)|{PLACES.pattern}") if odd else PLACES

    def _words(self, text: str) -> str:
        """Text without places, in which names stand alone."""
        return self._pattern.sub(self._word, text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Names that were learned, and hosts by their form; what is learned later is not found."""
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
        """Text whose last word is not the beginning of a known name."""
        found = CUT.search(text)
        if found is None:
            return text
        begun = found[0].lower()
        names = sorted(self._known)
        place = bisect_left(names, begun)
        if place == len(names) or not names[place].startswith(begun):
            return text
        return text[: found.start()] + self._known[names[place]](names[place])


def _url_behind(behind: re.Match[str], rest: str) -> str:
    """URL of the origin in what is behind the host of a cache."""
    return f"{behind['scheme']}://{rest[behind.end() :]}"
