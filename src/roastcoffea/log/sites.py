"""Sites that hold the files of a fileset, where its metadata tell, or coffea's tools for Rucio have left a map."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

KEYS: Final = ("site", "sites", "replicas")
"""Where metadata of a dataset may have them: a site for all files, or files by site, or sites by file."""

MAP: Final = Path(".sites_map.json")
"""File in which coffea's `rucio_utils` keeps the beginnings of the URLs of each site, in the working directory."""


def sites_of(items: Sequence[Any]) -> list[str | None]:
    """Site of the file of each of coffea's items; None where nothing tells."""
    prefixes: dict[str, str] | None = None
    known: dict[tuple[int, str], str | None] = {}
    found = []
    for item in items:
        metadata, file = _metadata(item), str(item.filename)
        place = id(metadata), file
        if place not in known:
            known[place] = _by_metadata(metadata, file)
            if known[place] is None and "://" in file:
                prefixes = _prefixes() if prefixes is None else prefixes
                known[place] = _by_prefix(prefixes, file)
        found.append(known[place])
    return found


def _metadata(item: Any) -> Any:
    given = getattr(item, "usermeta", None)
    return getattr(item, "metadata", None) if given is None else given


def _by_metadata(metadata: Any, file: str) -> str | None:
    """The site that metadata of a dataset name for a file."""
    for key in KEYS if isinstance(metadata, Mapping) else ():
        named = metadata.get(key)
        if isinstance(named, str):
            return named
        if isinstance(named, Mapping):
            if isinstance(named.get(file), str):
                return str(named[file])
            for site, files in named.items():
                if isinstance(files, (list, tuple, set)) and file in files:
                    return str(site)
    return None


def _prefixes() -> dict[str, str]:
    """Site by the beginning of its URLs, longest first."""
    try:
        sites = json.loads(MAP.read_text(encoding="utf-8"))
        rules = [(site, rule) for site, given in sites.items() for rule in _rules(given)]
    except (OSError, ValueError, AttributeError):
        return {}
    found = {rule.partition("$")[0]: str(site) for site, rule in rules}
    return {prefix: found[prefix] for prefix in sorted(found, key=len, reverse=True) if "://" in prefix}


def _rules(given: Any) -> list[str]:
    """Beginnings of URLs of a site: one, or one for each rule of its catalogue."""
    return [rule for rule in (given.values() if isinstance(given, Mapping) else [given]) if isinstance(rule, str)]


def _by_prefix(prefixes: Mapping[str, str], file: str) -> str | None:
    return next((site for prefix, site in prefixes.items() if file.startswith(prefix)), None)
