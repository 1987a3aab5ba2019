"""The terms that tables and pages use, and the reference of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import IO, Final, NamedTuple

from markupsafe import Markup

import roastcoffea.diagnosis  # noqa: F401  (it adds to the catalogue)
from roastcoffea.metrics import CATALOGUE, Metric
from roastcoffea.metrics.phases import BYTE_CLASSES, PHASES, RESIDUAL, TIME_CLASSES
from roastcoffea.sheets.sheet import UNACCOUNTED

DOCUMENTATION: Final = "https://roastcoffea.readthedocs.io/en/latest/"
"""Where the documentation is published; `[project.urls]` of the package has it as well."""

DATA, CLUSTER, QUANTITIES, CONCLUSIONS = "Data", "Cluster", "Quantities", "Conclusions"
TIME, BYTES, IN_CHUNKS = "Classes of thread time", "Classes of bytes", "Phases of a chunk"
GROUPS: Final = (DATA, CLUSTER, QUANTITIES, TIME, BYTES, IN_CHUNKS, CONCLUSIONS)
"""Groups of terms, in the order of the glossary."""

OWN: Final[Mapping[str, Mapping[str, str]]] = {
    DATA: {
        "fileset": "What a Runner is given: the files of each dataset.",
        "dataset": "A name in the fileset, and the files that belong to it.",
        "file": "A ROOT or Parquet file, named by its path or URL. Secrets in a URL are masked.",
        "chunk": "A range of entries of one file, processed by one task. coffea divides each file into equal chunks of "
        "about `chunksize` events.",
        "attempt": "One try at a chunk, a file or a Dask task. A chunk that is retried has several attempts.",
        "branch": "A column of a TTree, such as Jet_pt. Fields of an RNTuple and columns of a Parquet file are listed "
        "as branches too.",
        "basket": "A compressed block of consecutive entries of one branch, and the smallest piece that can be read. "
        "Pages of an RNTuple and column chunks of a Parquet file play the same part.",
        "section": "A part of process() that you have named with `track_time`, `track_memory` or `track_bytes`.",
        "endpoint": "The host of a file's URL, with its port. Local files together are one endpoint.",
        "run": "Everything between entering and leaving a collector. It may hold several Runner calls.",
        "measurement": "A run with all that is computed from it. Saved, it is a folder.",
    },
    CLUSTER: {
        "client": "The process with the `distributed.Client`: your script or notebook.",
        "scheduler": "The Dask process that assigns tasks to workers.",
        "worker": "A process that runs tasks on one or more threads. Tables and pages call the first worker of a host "
        "`host:1`.",
        "worker thread": "A thread of a worker that runs tasks. Dask calls worker threads cores; whether there is a "
        "core for each is not known.",
        "slot": "Room for one running task. A worker has as many slots as threads.",
        "task": "A unit of work that Dask schedules: one chunk, one merge, or the opening of one file.",
        "task prefix": "The name that Dask groups tasks by: the first part of a task's key. For chunks it is the class "
        "of the processor.",
        "span": "Dask's name for the tasks of a `with` block. Fine metrics are counted by span.",
        "fine metrics": "What Dask itself counts inside tasks: CPU and other time, transfers, spilling, serialization.",
        "nanny": "The Dask process that restarts a worker that has died, and ends one that uses too much memory.",
        "merge step": "A task that adds up the results of several chunks.",
    },
    QUANTITIES: {
        "thread time": "Time summed over worker threads, busy or not: the number of threads times the time for which "
        "their worker was there.",
        "core-hours": "Thread time in hours, for workers that have a core for each thread.",
        "CPU time": "Time on a core, as the operating system counts it. Waiting is not in it.",
        "ledger": "A table of classes that exclude each other and add up to a total that was measured separately: "
        "thread time, or bytes requested from storage.",
        "class": "A row of a ledger. Every second of thread time, or every byte, is in exactly one class.",
        "phase": "A part of an attempt's time that has a column in the table of chunks. Each phase belongs to a class.",
        "certificate": "The statement next to a ledger that it is complete, or what is missing from it.",
        "transferred": "Bytes received from storage. They may exceed the bytes requested, because sources merge nearby "
        "ranges and read the gaps.",
    },
    CONCLUSIONS: {
        "bottleneck": "The cause that most of the thread time belongs to. Healthy runs have one too.",
        "verdict": "All findings of a run, ranked.",
        "finding": "A cause of lost time that is worth fixing: what is slow and where, what fixing it saves, what to "
        "do.",
        "culprit": "Who or what causes a finding: a worker, host, file, dataset, branch, section, endpoint, function "
        "or chunk size.",
        "potential saving": "Wall time that a replay of the run without the cause saves. It is marked `at most` where "
        "something else may take the place of the cause.",
        "remedy": "A value or a line to copy that removes the cause of a finding.",
        "straggler": "A chunk that took at least twice as long as its events and bytes predict.",
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
"""Terms that the catalogue of metrics defines."""


class Term(NamedTuple):
    """An entry of the glossary."""

    name: str
    group: str
    meaning: str

    @property
    def anchor(self) -> str:
        """Its place on the page of the glossary."""
        return f"term-{re.sub('[^A-Za-z0-9]+', '-', self.name)}"

    @property
    def address(self) -> str:
        """Its place in the published documentation."""
        return f"{DOCUMENTATION}glossary.html#{self.anchor}"


@cache
def glossary() -> Mapping[str, Term]:
    """All terms by name, in the order of the page."""
    terms: dict[str, Term] = {}
    for group in GROUPS:
        for name, meaning in _defined(group):
            if name in terms:  # both ledgers have it
                both = f"Of thread time: {terms[name].meaning} Of bytes: {meaning}"
                terms[name] = terms[name]._replace(meaning=both)
            else:
                terms[name] = Term(name, group, meaning)
    return terms


def linked(name: str) -> Markup | str:
    """A name with a link to its entry in the glossary, if it is a term."""
    term = glossary().get({UNACCOUNTED: RESIDUAL}.get(name, name))
    if term is None:
        return name
    return Markup('<a class="term" href="{}" title="{}">{}</a>').format(term.address, term.meaning, name)


def page_address(page: str) -> str:
    """Address of a page of the published documentation, such as `limited/storage`."""
    return f"{DOCUMENTATION}{page}.html"


def _defined(group: str) -> Iterator[tuple[str, str]]:
    """Names and meanings of a group."""
    yield from OWN.get(group, {}).items()
    if group == QUANTITIES:
        meanings = {metric.name: metric.meaning for metric in CATALOGUE.metrics()}
        yield from ((name, meanings[metric].partition("\n")[0]) for name, metric in OF_METRICS.items())
    elif group == TIME:
        yield from ((one.name, one.meaning) for one in TIME_CLASSES)
    elif group == BYTES:
        yield from ((one.name, one.meaning) for one in BYTE_CLASSES)
    elif group == IN_CHUNKS:
        classes = {one.name for one in TIME_CLASSES}
        yield from (
            (phase.name, f"{phase.meaning}. It belongs to the class {phase.time_class}.")
            for phase in PHASES
            if phase.name not in classes
        )


HEADING = """\
# Metrics

This page is written by `roastcoffea metrics --markdown`; the catalogue in `src/roastcoffea/metrics` is its source.

"""
HOW_TO_READ = """\
What could not be measured in a run is absent, with the reason in
`measurement.metrics.missing[name]`. Bytes have decimal prefixes where they are shown: 1 kB is 1000 B. A
formula names other metrics, or columns of the measurement's tables. Attempts "that counted" are those whose
result was used: the last of each chunk.
"""


def metric_reference() -> str:
    """Markdown of the whole catalogue: unit, source, alias, meaning and formula of each metric."""
    lines = [f"{HEADING}{HOW_TO_READ}"]
    for group, metrics in groupby(CATALOGUE.metrics(), attrgetter("group")):
        lines.append(f"## {group.capitalize()}\n")
        lines += [_entry(metric) for metric in metrics]
    return "\n".join(lines)


def _entry(metric: Metric) -> str:
    facts = f"unit: {metric.unit}; source: {metric.source}" + (f"; alias: `{metric.alias}`" if metric.alias else "")
    return f"### `{metric.name}`\n\n{metric.meaning}\n\n- {facts}\n- formula: `{metric.formula}`\n"


def print_reference(file: IO[str] | None = None) -> None:
    """Print the catalogue in readable form, to the terminal or into a file."""
    from rich.markdown import Markdown

    from roastcoffea.sheets.terminal import console_for

    console_for(file).print(Markdown(metric_reference().removeprefix(HEADING)))
