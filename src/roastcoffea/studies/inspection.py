"""Inspection of a fileset before a run: contents of the files, and files to drop."""

from __future__ import annotations

import gzip
import json
import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

from roastcoffea.errors import RoastcoffeaError
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.metrics.endpoints import endpoint
from roastcoffea.redaction import redacted
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Column, Sheet, columns
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.tree_headers import TreeHeader, tree_header
from roastcoffea.units import BYTE, COUNT, SECOND, counted, few, number

INSPECT_FORMAT: Final = "roastcoffea inspect 1"
FORM: Final = '{"dataset": {"files": {"file.root": "Events"}}}'
SILENT: Final = 3
"""Number of unanswered requests after which a server's remaining files are skipped."""
MOST: Final = 20
"""Maximum number of table rows to print."""

OK, EMPTY, UNREADABLE, NO_ANSWER, TWICE = "ok", "empty", "unreadable", "no answer", "duplicate"


class Input(NamedTuple):
    """A file in a fileset, with the result of the inspection. `tree` is None if no tree was specified."""

    dataset: str
    file: str
    tree: str | None
    state: str = OK
    reason: str = ""
    """Why the state is not OK."""
    header: TreeHeader | None = None

    @property
    def server(self) -> str | None:
        return endpoint(self.file)


# Filesets


def fileset_at(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as error:
        raise RoastcoffeaError(f"{path} cannot be read as a JSON fileset: {error}") from error
    if not isinstance(found, dict) or not found:
        raise RoastcoffeaError(f"{path} does not contain a fileset of the form {FORM}")
    return found


def inputs_of(fileset: Mapping[str, Any], tree: str | None) -> list[Input]:
    """List the files of a coffea fileset. `tree` is used for files without a tree name."""
    found = []
    for dataset, entry in fileset.items():
        described = entry if isinstance(entry, Mapping) else {"files": entry}
        files = described.get("files")
        if isinstance(files, str) or not isinstance(files, Iterable):
            raise RoastcoffeaError(f"dataset {dataset} has no list of files; a fileset has the form {FORM}")
        for file in files:
            spec = files[file] if isinstance(files, Mapping) else None
            own = spec.get("object_path") if isinstance(spec, Mapping) else spec
            found.append(Input(dataset, file, own or described.get("treename") or tree))
    return found


# Reading metadata


def looked_at(one: Input) -> Input:
    try:
        header = tree_header(one.file, one.tree)
    except Exception as error:  # noqa: BLE001  (damaged files can raise any exception)
        raise_if_interrupted(error)
        text = " ".join(str(error).split()) or type(error).__name__
        return one._replace(state=UNREADABLE, reason=redacted(text)[:200])
    state, reason = (OK, "") if header.events else (EMPTY, "no events")
    return one._replace(state=state, reason=reason, header=header)


def all_looked_at(
    inputs: Sequence[Input],
    threads: int,
    timeout: float,
    done: Callable[[int], None],
    look: Callable[[Input], Input] = looked_at,
) -> list[Input]:
    """Inspect files in several threads, with a time limit for each file.

    A thread waiting for a server cannot be stopped. After the time limit, the thread is abandoned; it does not keep the
    program from exiting. If a server has not responded for SILENT files, its remaining files are skipped.
    """
    waiting, answers = deque(enumerate(inputs)), queue.SimpleQueue[tuple[int, Input]]()
    silent = Counter[str | None]()

    def look_and_answer(one: Input, answer: queue.SimpleQueue[Input]) -> None:
        answer.put(look(one))
        silent[one.server] = -len(inputs)  # never skip this server

    def looked(one: Input) -> Input:
        if silent[one.server] >= SILENT:
            why = f"not tried: {one.server} did not answer for {SILENT} other files"
            return one._replace(state=NO_ANSWER, reason=why)
        answer = queue.SimpleQueue[Input]()
        threading.Thread(target=look_and_answer, args=(one, answer), daemon=True).start()
        with suppress(queue.Empty):
            return answer.get(timeout=timeout)
        silent[one.server] += 1
        return one._replace(state=NO_ANSWER, reason=f"no answer within {SECOND.text(timeout)}")

    def work() -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                place, one = waiting.popleft()
                answers.put((place, looked(one)))

    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    found = list(inputs)
    try:
        for looked_at_so_far in range(1, len(inputs) + 1):
            place, found[place] = answers.get()
            done(looked_at_so_far)
    finally:
        waiting.clear()  # if interrupted, no more files are opened
    return found


# Results

AMOUNTS: Final = {
    "dataset": None,
    "files": COUNT,
    "readable": COUNT,
    "events": COUNT,
    "size": BYTE,
    "basket_size": BYTE,
    "codecs": None,
}


@dataclass(frozen=True)
class Inspection(Presented):
    """Result of inspecting a fileset. `files` lists all files in the order of the fileset."""

    fileset: Mapping[str, Any]
    files: Sequence[Input]
    keep_empty: bool = False

    def keeps(self, one: Input) -> bool:
        return one.state == OK or (self.keep_empty and one.state == EMPTY)

    @property
    def dropped(self) -> list[Input]:
        return [one for one in self.files if not self.keeps(one)]

    @property
    def cleaned(self) -> dict[str, Any]:
        """The fileset without the files to drop, and without datasets that have no files left."""
        found, kept = dict[str, Any](), map(self.keeps, self.files)
        for dataset, entry in self.fileset.items():
            files = entry["files"] if isinstance(entry, Mapping) else entry
            names = list(compress(files, kept))
            rest = {name: files[name] for name in names} if isinstance(files, Mapping) else names
            if rest:
                found[dataset] = {**entry, "files": rest} if isinstance(entry, Mapping) else rest
        return found

    @cached_property
    def datasets(self) -> dict[str, dict[str, TreeHeader]]:
        """Metadata of the readable files in each dataset, excluding duplicates."""
        found: dict[str, dict[str, TreeHeader]] = {one.dataset: {} for one in self.files}
        for one in self.files:
            if one.header is not None and one.state != TWICE:
                found[one.dataset][one.file] = one.header
        return found

    @cached_property
    def partial_branches(self) -> list[dict[str, Any]]:
        """Branches missing from some of a dataset's files, grouped by the files that lack them."""
        rows = []
        for dataset, own in self.datasets.items():
            lacking = defaultdict[tuple[str, ...], list[str]](list)
            for branch in sorted(frozenset().union(*(header.branches for header in own.values()))):
                lacking[tuple(file for file in own if branch not in own[file].branches)].append(branch)
            rows += [
                {"dataset": dataset, "branches": names, "missing_in": list(files), "of_files": len(own)}
                for files, names in lacking.items()
                if files
            ]
        return rows

    def write(self, path: Path, *, overwrite: bool = False) -> Path:
        """Write the cleaned fileset to a JSON file atomically. The file is gzipped if `path` ends in .gz."""
        data = json.dumps(self.cleaned, indent=1).encode()
        with whole_file(path, overwrite=overwrite) as file:
            file.write(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    def as_dict(self) -> dict[str, Any]:
        files = []
        for one in self.files:
            row = one._asdict() | {"drop": not self.keeps(one)}
            if (header := row.pop("header")) is not None:
                row |= header._asdict() | {"branches": len(header.branches), "codecs": sorted(header.codecs)}
            files.append(row)
        return {
            "format": INSPECT_FORMAT,
            "datasets": self.rows,
            "files": files,
            "partial_branches": self.partial_branches,
        }

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        counts, rows = Counter(one.dataset for one in self.files), []
        for dataset, own in self.datasets.items():
            headers = own.values()
            *amounts, baskets, compressed = (
                sum(getattr(header, name) or 0 for header in headers)
                for name in ("events", "size", "baskets", "compressed")
            )
            per_basket = compressed / baskets if baskets else None
            codecs = ", ".join(sorted(frozenset().union(*(header.codecs for header in headers)))) or None
            row = (dataset, counts[dataset], len(headers), *(amounts if own else (None, None)), per_basket, codecs)
            rows.append(dict(zip(AMOUNTS, row, strict=True)))
        return rows

    def sheets(self) -> list[Sheet]:
        heads = [Column(name.replace("_", " "), unit) for name, unit in AMOUNTS.items()]
        states = Counter(one.state for one in self.files).most_common()
        lead = ", ".join(f"{number(count)} {state}" for state, count in states)
        sheets = [
            Sheet(
                title="inputs",
                lead=[lead],
                columns=heads,
                rows=[tuple(row.values()) for row in self.rows],
                things="datasets",
            ),
            Sheet(
                title="branches missing from some files",
                columns=columns(None, "branches", "missing in", "files"),
                rows=[
                    (
                        few(row["branches"], 2),
                        f"{len(row['missing_in'])} of {row['of_files']}",
                        few(row["missing_in"], 1),
                    )
                    for row in self.partial_branches[:MOST]
                ],
                total=len(self.partial_branches),
            ),
            Sheet(
                title=f"drop {counted(len(self.dropped), 'file')} of {number(len(self.files))}",
                columns=columns(None, "file", "why"),
                rows=[(one.file, one.reason) for one in self.dropped[:MOST]],
                total=len(self.dropped),
            ),
        ]
        return [sheet for sheet in sheets if sheet.rows]


def inspect(
    fileset: Mapping[str, Any],
    tree: str | None = None,
    *,
    threads: int = 16,
    timeout: float = 20.0,
    keep_empty: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> Inspection:
    """Inspect the metadata of all files in a fileset.

    Parameters
    ----------
    fileset
        Fileset in any form that coffea accepts.
    tree
        Name of the tree in files for which the fileset does not specify a tree. The default is the only tree in the
        file, or Events.
    threads, timeout
        Number of files to inspect in parallel, and time limit for each file in seconds.
    keep_empty
        Whether to keep files that have no events. Other trees in these files may contain sums of weights.
    done
        Function to call with the number of files inspected so far.
    """
    first, files = dict[tuple[str, str], Input](), []
    for one in all_looked_at(inputs_of(fileset, tree), threads, timeout, done):
        before = first.setdefault((one.dataset, one.header.uuid), one) if one.header else one
        twice = one._replace(state=TWICE, reason=f"same file as {before.file}")
        files.append(one if before is one else twice)
    return Inspection(fileset, files, keep_empty)
