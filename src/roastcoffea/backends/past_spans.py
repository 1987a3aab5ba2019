"""Removal of the spans of past runs from the scheduler, and of their counts from the workers.

Dask keeps both forever. This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from roastcoffea.backends.survey import ask_workers

OURS = "roastcoffea"
"""Tag of the spans of runs."""

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds before each attempt to remove a span: a task of it may still run, or be kept."""

PATIENCE = 5.0
"""Seconds for workers to answer."""

UNTIL_GONE = 600.0
"""Seconds for which the scheduler still knows an empty span: it stops workers whose heartbeat has counts of unknown
spans, and forgets those without a heartbeat for half as long."""


async def forget_span(scheduler: Any, identity: str, leave: bytes) -> None:
    """Remove the span of a run, as soon as none of its tasks is left.

    It stays if spans of the user's are in it or around it, or if its tasks are kept for long.

    Parameters
    ----------
    leave
        Pickle of `leave_spans`.
    """
    for pause in PAUSES:
        await asyncio.sleep(pause)
        tree = _tree(scheduler, identity)
        if tree is None:
            return
        if _in_use(scheduler, tree):
            continue
        answers, silent = await ask_workers(scheduler, leave, {"spans": list(tree)}, PATIENCE)
        if all(answers.values()) and not silent and not _in_use(scheduler, tree):
            _empty(scheduler, tree)
            asyncio.get_running_loop().call_later(UNTIL_GONE, _remove, scheduler, tree)
            return


def leave_spans(spans: Iterable[str], dask_worker: Any = None) -> bool:
    """Remove the counts of these spans from a worker; False if it has tasks of them."""
    if any(task.span_id in spans for task in dask_worker.state.tasks.values()):
        return False
    for key in list(dask_worker.digests_total):
        if isinstance(key, tuple) and len(key) > 2 and key[1] in spans:
            del dask_worker.digests_total[key]
    return True


def _tree(scheduler: Any, identity: str) -> dict[str, Any] | None:
    """A span and all spans in it, by identity; None if it is gone or not to be removed."""
    span = scheduler.extensions["spans"].spans.get(identity)
    if span is None or span.parent is not None:
        return None
    tree = {each.id: each for each in span.traverse_spans()}
    return tree if all(set(each.name) == {OURS} for each in tree.values()) else None


def _in_use(scheduler: Any, tree: dict[str, Any]) -> bool:
    """Whether a task or a collector belongs to one of the spans, or another collector counts tasks in it."""
    for plugin in scheduler.plugins.values():
        counted = getattr(getattr(plugin, "attempts", None), "elsewhere", ())
        if getattr(getattr(plugin, "run", None), "span", None) in tree or not tree.keys().isdisjoint(counted):
            return True
    return any(group.span_id in tree for group in scheduler.task_groups.values())


def _empty(scheduler: Any, tree: dict[str, Any]) -> None:
    """Remove spans from all lists, and what is in them."""
    extension = scheduler.extensions["spans"]
    for span in tree.values():
        listed = [extension.root_spans, *(extension.spans_search_by_tag[tag] for tag in span.name)]
        for spans in [*listed, extension.spans_search_by_name[span.name]]:
            if span in spans:
                spans.remove(span)
        for content in (span.children, span.groups, span._code, span._cumulative_worker_metrics):
            content.clear()


def _remove(scheduler: Any, tree: dict[str, Any]) -> None:
    """Forget empty spans; one that was used again stays."""
    known = scheduler.extensions["spans"].spans
    for identity, span in tree.items():
        if known.get(identity) is span and not span.groups:
            del known[identity]
