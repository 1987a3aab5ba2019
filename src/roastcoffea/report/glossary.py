"""Glossary of terms in tables and pages, and the metric reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from operator import attrgetter
from statistics import mode
from typing import IO, Final, NamedTuple

from markupsafe import Markup

import roastcoffea.diagnosis  # noqa: F401  (it adds to the catalogue)
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.phases import BYTE_CLASSES, PHASES, RESIDUAL, TIME_CLASSES
from roastcoffea.sheets.sheet import UNACCOUNTED

DOCUMENTATION: Final = "https://roastcoffea.readthedocs.io/en/latest/"
"""URL of the published documentation, the same as in the package's `[project.urls]`."""

DATA, CLUSTER, QUANTITIES, CONCLUSIONS = "Data", "Cluster", "Quantities", "Conclusions"
TIME, BYTES, IN_CHUNKS = "Classes of thread time", "Classes of bytes", "Phases of a chunk"
GROUPS: Final = (DATA, CLUSTER, QUANTITIES, TIME, BYTES, IN_CHUNKS, CONCLUSIONS)

OWN: Final[Mapping[str, Mapping[str, str]]] = {
    DATA: {
        "fileset": "The files of each dataset, as passed to a Runner.",
        "dataset": "A named group of files in a fileset.",
        "file": "A ROOT or Parquet file, identified by its path or URL.",
        "chunk": "A range of entries of one file, processed by one task.",
        "attempt": "One try at processing a chunk, opening a file or running a task.",
        "branch": "A column of a TTree, a field of an RNTuple or a column of a Parquet file.",
        "basket": "A compressed block of a branch's entries, called a page in RNTuple and a column chunk in Parquet.",
        "section": "A part of process() named with `track_time` or a related function.",
        "endpoint": "Host and port of the server that delivers a file; all local files share one endpoint.",
        "run": "Everything that happens between entering and exiting a collector.",
        "measurement": "A run and everything computed from it.",
    },
    CLUSTER: {
        "client": "The process that holds the `distributed.Client`.",
        "scheduler": "The Dask process that assigns tasks to workers.",
        "worker": "A process that runs tasks on its threads.",
        "worker thread": "A thread that runs tasks. Dask counts worker threads as cores.",
        "slot": "Capacity to run one task. Each worker thread has one slot.",
        "task": "A unit of work for Dask: a chunk, a merge, or opening a file.",
        "task prefix": "The first part of a task's key. For chunks, it is the name of the processor's class.",
        "span": "Dask's term for the tasks submitted in a `with span():` block.",
        "fine metrics": "Times and sizes that Dask measures inside tasks, by span.",
        "nanny": "The Dask process that restarts dead workers and kills workers that use too much memory.",
        "merge step": "A task that adds up the results of several chunks.",
    },
    QUANTITIES: {
        "thread time": "Time summed over worker threads, whether busy or idle, while their workers were present.",
        "core-hours": "Thread time in hours, assuming that workers have one core per thread.",
        "CPU time": "Time spent running on a core, as measured by the operating system; excludes waits.",
        "ledger": "Disjoint classes that add up to a separately measured total of thread time or requested bytes.",
        "class": "A row of a ledger. Each second or byte belongs to exactly one class.",
        "phase": "A part of an attempt's time that has its own column. Each phase belongs to a class.",
        "certificate": "A statement of whether a ledger is complete and, if not, what is missing.",
        "transferred": "Bytes received from storage, including gaps between merged ranges.",
    },
    CONCLUSIONS: {
        "bottleneck": "The cause that accounts for the most thread time. Healthy runs also have a bottleneck.",
        "verdict": "All findings, ranked.",
        "finding": "A statement of what is slow and where, what fixing it would save, and what to do.",
        "culprit": "The cause of a problem, such as a worker, file, branch or function.",
        "potential saving": "Wall time saved in a replay without the cause; `at most` marks an upper limit.",
        "remedy": "A value or line to copy that removes the cause.",
        "straggler": "A chunk that took at least twice as long as predicted from its number of events and bytes.",
    },
}

OF_METRICS: Final[Mapping[str, str]] = {
    "wall time": "elapsed_time_seconds",
    "core efficiency": "core_efficiency",
    "event rate": "event_rate_elapsed_khz",
    "rate per core": "event_rate_core_khz",
    "data rate": "data_rate_gbps",
    "compression ratio": "compression_ratio",
}


class Term(NamedTuple):
    name: str
    group: str
    meaning: str

    @property
    def anchor(self) -> str:
        return f"term-{re.sub('[^A-Za-z0-9._]+', '-', self.name)}"

    @property
    def address(self) -> str:
        """URL of the term in the published documentation."""
        return f"{DOCUMENTATION}glossary.html#{self.anchor}"


@cache
def glossary() -> Mapping[str, Term]:
    """All terms by name, in page order."""
    terms: dict[str, Term] = {}
    for group in GROUPS:
        for name, meaning in _defined(group):
            if name in terms:  # both ledgers have a class with this name
                time = terms[name]
                terms[name] = time._replace(meaning=f"In thread time: {time.meaning} In bytes: {meaning}")
            else:
                terms[name] = Term(name, group, meaning)
    return terms


def linked(name: str) -> Markup | str:
    """Link a name to its entry in the glossary, if it is a term."""
    term = glossary().get({UNACCOUNTED: RESIDUAL}.get(name, name))
    if term is None:
        return name
    return Markup('<a class="term" href="{}" title="{}">{}</a>').format(term.address, term.meaning, name)


def page_address(page: str) -> str:
    """URL of a page in the published documentation, e.g. `limited/memory#memory-grows`."""
    name, hash_, section = page.partition("#")
    return f"{DOCUMENTATION}{name}.html{hash_}{section}"


def _defined(group: str) -> Iterator[tuple[str, str]]:
    yield from OWN.get(group, {}).items()
    if group == QUANTITIES:
        meanings = {metric.name: metric.meaning for metric in CATALOGUE.metrics()}
        yield from ((name, meanings[metric].partition("\n")[0]) for name, metric in OF_METRICS.items())
    elif group == TIME:
        yield from ((one.name, one.meaning) for one in TIME_CLASSES)
    elif group == BYTES:
        yield from ((one.name, one.meaning) for one in BYTE_CLASSES)
    elif group == IN_CHUNKS:
        for name, time_class, _, _, meaning in PHASES:
            if name != time_class:
                yield name, f"{meaning}. Its class is {time_class}."


HEADING = """\
# Metrics

`roastcoffea metrics --markdown` writes this page from the catalogue in `src/roastcoffea/metrics`.

"""
HOW_TO_READ = """\
Metrics that could not be measured are absent; `measurement.metrics.missing[name]` gives the reason. Sizes use
decimal prefixes (1 kB is 1000 B). Attempts "that counted" are those whose results were used: the last attempt for
each chunk. Sums over all attempts include failed attempts up to the point of failure. Each entry ends with its
formula in terms of other metrics or table columns. The formula is followed by the unit and the source, if they differ
from those in the group's first line, and by any older name.
"""


def metric_reference() -> str:
    """Metric catalogue in Markdown, with meanings, formulas, units, sources and aliases."""
    lines = [HEADING + HOW_TO_READ]
    for group, found in groupby(CATALOGUE.metrics(), attrgetter("group")):
        metrics = [*found]
        usual = unit, source = mode(map(attrgetter("unit", "source"), metrics))
        lines.append(f"## {group.capitalize()}\n\nUnit: {unit}; source: {source}.\n")
        for metric in metrics:
            facts = metric.unit, metric.source, metric.alias and f"alias: `{metric.alias}`"
            last = "".join(f"; {fact}" for fact in facts if fact and fact not in usual)
            lines.append(f"### `{metric.name}`\n\n{metric.meaning}\n\n`{metric.formula}`{last}\n")
    return "\n".join(lines)


def print_reference(file: IO[str] | None = None) -> None:
    """Print the metric catalogue in readable form to the terminal or a file."""
    from rich.markdown import Markdown

    from roastcoffea.sheets.terminal import console_for

    console_for(file).print(Markdown(metric_reference().removeprefix(HEADING)))
