"""What was read of files: shares, branches, bytes, and how well they are compressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from roastcoffea.compat.chunk_dicts import branches_of_columns
from roastcoffea.metrics.branches import OF_ALL
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import measured_values
from roastcoffea.metrics.phases import PAYLOAD, REREAD
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import AMBER, BLUE, OF_BYTES
from roastcoffea.visualization.registry import TALL, plot
from roastcoffea.visualization.series import known_rows

SHARES: Final = {"bytes_read_percent": "of its bytes", "branches_read_percent": "of its branches"}
READ: Final = {PAYLOAD: "bytes_payload", REREAD: "bytes_reread"}
MOST_FILES: Final = 10


@plot("Compression of what was read")
def plot_compression_ratio_distribution(ax: Axes, compression_factors: tuple[str, Numbers]) -> None:
    """Draw how the compression factors (uncompressed over compressed size) of chunks are distributed.

    Of a measurement of version 0.1.2 they are those of files.
    """
    things, factors = compression_factors
    draw.distribution(ax, factors, [None] * len(factors), things)
    ax.set_xlabel("compression factor (uncompressed / compressed size)")


@plot("Share of the files that was read", size=TALL)
def plot_data_access_percentage(ax: Axes, file_read_metrics: dict[str, dict[str, Any]]) -> None:
    """Draw what share of each file's bytes and branches was read; of many files how the shares are distributed."""
    shares = {name: _shares(file_read_metrics, name) for name in SHARES}
    if not any(np.isfinite(values).any() for values in shares.values()):
        raise NotMeasuredError(f"of none of {len(file_read_metrics)} files it is known how much there is to read")
    if len(file_read_metrics) > MOST_FILES:
        _draw_distributions(ax, shares)
    else:
        _draw_files(ax, list(file_read_metrics), shares)
    draw.legend(ax)


def _shares(files: Mapping[str, Mapping[str, Any]], name: str) -> Numbers:
    """Percentages of files; NaN where one is not known."""
    return np.array([np.nan if file.get(name) is None else file[name] for file in files.values()], dtype=np.float64)


def _draw_distributions(ax: Axes, shares: Mapping[str, Numbers]) -> None:
    edges = np.linspace(0, 100, 51)
    ax.set_xlabel("share of a file that was read (%)")
    for (name, values), colour in zip(shares.items(), (BLUE, AMBER), strict=True):
        known = values[np.isfinite(values)]
        if len(known):
            counts = np.histogram(known, edges)[0]
            ax.stairs(counts, edges, color=colour, fill=True, alpha=0.7, label=f"share {SHARES[name]}")
        if len(known) < len(values):
            of = f"{len(values) - len(known)} of " if len(known) else ""
            draw.note(ax, f"the share {SHARES[name]} is not known for {of}{len(values)} files")
    ax.set_ylabel("files")
    ax.set_ylim(bottom=0)


def _draw_files(ax: Axes, files: list[str], shares: Mapping[str, Numbers]) -> None:
    places = np.arange(len(files))
    for offset, (name, values), colour in zip((-0.19, 0.19), shares.items(), (BLUE, AMBER), strict=True):
        ax.barh(places + offset, np.nan_to_num(values), height=0.36, color=colour, label=f"share {SHARES[name]}")
        for place, value in zip(places, values, strict=True):
            text = "not known" if np.isnan(value) else f"{value:.3g} %"
            ax.annotate(
                text,
                (np.nan_to_num(value), place + offset),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=0.8 * draw.letters(ax),
            )
    ax.set_yticks(places, [draw.short(file.rpartition("/")[2]) for file in files])
    ax.set_ylim(len(files) - 0.4, -0.6)
    ax.set_xlim(0, 118)
    ax.set_xticks(range(0, 101, 20))
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("share that was read (%)")


@plot("Branches read by a chunk")
def plot_branch_access_per_chunk(ax: Axes, computed_chunks: pa.Table) -> None:
    """Draw how many branches chunks read, by dataset where there are few."""
    known = _known(computed_chunks, "branches", _numbers_of_columns(computed_chunks))
    draw.distribution(ax, measured_values(known["branches"]), known["dataset"].to_pylist(), "chunks", whole=True)
    ax.set_xlabel("branches read by a chunk")


@plot("Bytes requested by a chunk")
def plot_bytes_accessed_per_chunk(ax: Axes, computed_chunks: pa.Table) -> None:
    """Draw how many bytes chunks requested from storage, by dataset where there are few."""
    known = _known(computed_chunks, "bytes_requested", computed_chunks["coffea_bytes_read"])
    requested = measured_values(known["bytes_requested"])
    scale = draw.bytes_scale(float(requested.max()))
    draw.distribution(ax, requested * scale.factor, known["dataset"].to_pylist(), "chunks")
    ax.set_xlabel(f"requested by a chunk ({scale.unit})")


def _numbers_of_columns(chunks: pa.Table) -> pa.ChunkedArray:
    """How many branches coffea names for each chunk: it has a name for each buffer of a branch."""
    names = chunks["coffea_columns"].to_pylist() if chunks["coffea_columns"].null_count < len(chunks) else []
    numbers = [None if own is None else len(branches_of_columns(own)) for own in names]
    return pa.chunked_array([pa.array(numbers or [None] * len(chunks), pa.int64())])


def _known(chunks: pa.Table, column: str, otherwise: pa.ChunkedArray) -> pa.Table:
    """Chunks with their dataset of which a column is known, from coffea's own metrics else."""
    place = chunks.schema.get_field_index(column)
    return known_rows(chunks.set_column(place, column, pc.coalesce(chunks[column], otherwise)), column)


@plot("Bytes of branches", size=TALL)
def plot_branch_bytes(ax: Axes, branches: pa.Table) -> None:
    """Draw what was read of each branch over all files, for the first time and again; the largest on top."""
    if len(branches) == 0:
        raise NotMeasuredError("no branch was read")
    sums = branches.group_by("branch").aggregate([(column, "sum", OF_ALL) for column in READ.values()])
    sized = sums.drop_null()
    if len(sized) == 0:
        raise NotMeasuredError("of no branch it is known how many bytes it took")
    parts = {name: (measured_values(sized[f"{column}_sum"]), OF_BYTES[name]) for name, column in READ.items()}
    label = "read from storage, compressed"
    draw.pooled_bars(ax, sized["branch"].to_pylist(), parts, scale_of=draw.bytes_scale, label=label)
    if len(sized) < len(sums):
        draw.note(ax, f"the bytes of {len(sums) - len(sized)} branches are not known")
    draw.legend(ax)
