"""How well the run used what it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.units import BYTE, SECOND, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE
from roastcoffea.visualization.registry import plot

Ask = Callable[[str], Any]


class Share(NamedTuple):
    """A share in percent: `of` asks for metrics by name; `text` says what it is a share of."""

    label: str
    of: Callable[[Ask], float]
    text: Callable[[Ask], str] | None = None


EFFICIENCIES: Final = (
    Share("core efficiency", lambda ask: 100 * ask("core_efficiency")),
    Share("threads with a task", lambda ask: ask("busy_percent")),
    Share("CPU in processor tasks", lambda ask: ask("processor_cpu_percentage")),
    Share("useful bytes", lambda ask: 100 * ask("useful_fraction")),
    Share("of files: bytes read", lambda ask: ask("avg_bytes_read_percent")),
    Share("of files: branches read", lambda ask: ask("avg_branches_read_percent")),
)

UTILIZATIONS: Final = (
    Share(
        "workers: mean of peak",
        lambda ask: 100 * ask("avg_workers") / ask("peak_workers"),
        lambda ask: f"{number(three_digits(ask('avg_workers')))} of {number(ask('peak_workers'))}",
    ),
    Share(
        "cores: used by chunks",
        lambda ask: 100 * ask("core_efficiency"),
        lambda ask: f"{number(three_digits(ask('speedup_factor')))} of {number(three_digits(ask('total_cores')))}",
    ),
    Share(
        "cores: used by workers",
        lambda ask: 100 * ask("worker_cpu_time_seconds") / (ask("elapsed_time_seconds") * ask("total_cores")),
        lambda ask: SECOND.text(ask("worker_cpu_time_seconds")),
    ),
    Share(
        "memory: mean of peak",
        lambda ask: 100 * ask("avg_memory_per_worker_bytes") / ask("peak_memory_bytes"),
        lambda ask: f"{BYTE.text(ask('avg_memory_per_worker_bytes'))} of {BYTE.text(ask('peak_memory_bytes'))}",
    ),
)


@plot("Efficiency")
def plot_efficiency_summary(ax: Axes, metric: Ask) -> None:
    """Draw what share of cores, threads and bytes was put to use."""
    _draw_shares(ax, EFFICIENCIES, metric)


@plot("Use of resources")
def plot_resource_utilization(ax: Axes, metric: Ask) -> None:
    """Draw how much of workers, cores and memory was used, beside what there was."""
    _draw_shares(ax, UTILIZATIONS, metric)


def _draw_shares(ax: Axes, shares: tuple[Share, ...], metric: Ask) -> None:
    values, texts, reasons = [], [], []
    for share in shares:
        try:
            values.append(float(share.of(metric)))
            texts.append(f"{three_digits(values[-1]):g} %" + (f" ({share.text(metric)})" if share.text else ""))
        except (NotMeasuredError, ZeroDivisionError) as reason:
            values.append(0.0)
            texts.append("not measured")
            reasons.append(str(reason))
    if len(reasons) == len(shares):
        raise NotMeasuredError("; ".join(dict.fromkeys(reasons)))
    draw.bars(ax, [share.label for share in shares], {"share": np.array(values)}, {"share": BLUE})
    ax.set_xlabel("share (%)")
    draw.bar_texts(ax, values, texts)
    if max(values) <= 100:
        ax.set_xticks(range(0, int(min(100, ax.get_xlim()[1])) + 1, 20))
