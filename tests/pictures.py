"""Runs to draw: made by rule from a few numbers, so that small and very large ones look alike, and stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from handmade import T, handmade_run

from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.run import PREPROCESSING_COLUMNS, SECTION_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, REQUEST_COLUMNS, SAMPLE_COLUMNS, TASK_COLUMNS

GIB = 2**30
EARLY = 2.0
"""Seconds from the start of the run to the first chunk."""

PHASES = ("open", "build", "read", "decompress", "interpret", "compute", "wait", "checkpoint", "result")
SHARES = np.array([0.05, 0.1, 0.2, 0.1, 0.05, 0.35, 0.1, 0.0, 0.05])
DATASETS = np.array(["ttbar", "wjets", "data_2018"])
BRANCHES = ("Jet_pt", "Jet_eta", "Muon_pt", "run")


def table(columns: tuple[Column, ...], length: int, values: dict[str, Any]) -> pa.Table:
    """Table of columns; those without values were not measured."""
    schema = arrow_schema(columns)
    return pa.table(
        [
            pa.array(values[field.name], field.type) if field.name in values else pa.nulls(length, field.type)
            for field in schema
        ],
        schema=schema,
    )


def fractions(count: int, step: float = 0.6180339887) -> np.ndarray[Any, Any]:
    """Evenly spread numbers between 0 and 1, in an order without a pattern that catches the eye."""
    return (np.arange(count) * step) % 1.0


def synthetic_run(workers: int = 4, threads: int = 2, rounds: int = 8, samples: int = 20, **changes: Any) -> Run:
    """Run in which each thread computes so many chunks; each 23rd fails, and each 29th is a straggler."""
    slots = workers * threads
    number = slots * rounds
    index = np.arange(number)
    slot, turn = index % slots, index // slots
    events = (5000 + 15_000 * fractions(number)).astype(np.int64)
    wall = events / 8000 * (1 + 0.2 * fractions(number, 0.7548776662))
    slow = index % 29 == 17
    wall = wall * np.where(slow, 3.5, 1.0)
    stop = EARLY + np.cumsum((wall + 0.05).reshape(rounds, slots), axis=0).ravel()
    start = stop - wall
    failed = index % 23 == 11
    end = float(stop.max()) + 1.0
    addresses = np.array([f"tcp://10.0.{worker // 250}.{worker % 250}:{40_000 + worker}" for worker in range(workers)])
    files = np.array([f"root://storage//store/{name}_{part}.root" for name in DATASETS for part in range(2)])
    dataset = turn % 3 if rounds > 1 else index % 3
    shares = SHARES + np.outer(slow, [0, 0, 1.0, 0, 0, 0, 0, 0, 0])
    phases = wall[:, None] * shares / shares.sum(axis=1)[:, None]
    payload = (events * (60 + 20 * dataset)).astype(np.int64) // 8 * 8
    gave = ~failed
    chunks = {
        "id": index,
        "dataset": DATASETS[dataset],
        "file": files[2 * dataset + index % 2],
        "tree": ["Events"] * number,
        "uuid": ["ab"] * number,
        "entry_start": turn * 20_000,
        "entry_stop": turn * 20_000 + events,
        "events": np.ma.array(events, mask=failed).tolist() if number < 10_000 else events,
        "start": T + start,
        "stop": T + stop,
        "wall_seconds": wall,
        "cpu_seconds": wall * np.where(slow, 0.2, 0.65),
        "helper_cpu_seconds": np.zeros(number),
        "worker": addresses[slot // threads],
        "thread": 1000 + slot,
        "key": np.char.add("k", index.astype(str)),
        "run_id": index,
        "attempt": np.ones(number, np.int64),
        "outcome": np.where(failed, "error", "ok"),
        "error": np.where(failed, "OSError: gone", None),
        "call": ["c1"] * number,
        "bytes_requested": payload + 200_000,
        "bytes_payload": payload,
        "bytes_metadata": np.full(number, 200_000),
        "bytes_uncompressed": (payload * (2 + fractions(number))).astype(np.int64),
        "branches": 10 + 5 * dataset,
        "tree_branches": np.full(number, 40),
        "file_bytes": np.full(number, 4 * int(payload.sum()) // 6),
        "memory_peak": np.full(number, GIB),
        "process_seconds": phases[:, 2:7].sum(axis=1),
    } | {f"{name}_seconds": phases[:, place] for place, name in enumerate(PHASES)}
    tasks = {
        "key": [*chunks["key"], *(f"r{one}" for one in range(slots))],
        "run_id": np.arange(number + slots),
        "prefix": ["Dijet"] * number + ["reduce"] * slots,
        "kind": ["processor"] * number + ["merge"] * slots,
        "worker": [*chunks["worker"], *addresses[np.arange(slots) // threads]],
        "thread": 1000 + np.append(slot, np.arange(slots)),
        "start": T + np.append(start - 0.02, stop[-slots:] + 0.05),
        "stop": T + np.append(stop + 0.01, stop[-slots:] + 0.4),
        "outcome": [*np.where(failed, "error", "ok"), *["ok"] * slots],
    }
    tasks["runnable"] = np.append(np.full(number, T + EARLY), tasks["start"][number:])
    tasks["assigned"] = tasks["start"] - 0.01
    moment = np.tile(np.linspace(0, end, samples), workers)
    worker = np.repeat(np.arange(workers), samples)
    busy = np.clip((moment - 1) / 3, 0, 1) * np.clip((end - moment) / 2, 0, 1)
    wave = 0.5 + 0.5 * np.sin(moment / 2 + worker)
    sampled = {
        "worker": addresses[worker],
        "time": T + moment,
        "cpu_percent": 100 * threads * busy * (0.5 + 0.3 * wave),
        "gpu_percent": 100 * busy * (0.5 + 0.4 * wave),
        "gpu_memory": (8e9 * busy * (0.6 + 0.3 * wave)).astype(np.int64),
        "memory": (GIB * (0.6 + 0.5 * moment / end + 0.3 * wave + 0.1 * (worker % 7))).astype(np.int64),
        "memory_limit": np.full(len(worker), 3 * GIB),
        "processing": np.rint(2 * threads * busy).astype(np.int64),
        "executing": np.rint(threads * busy).astype(np.int64),
        "occupancy": 8 * busy * (0.5 + wave),
    }
    lifetimes = {
        "worker": addresses,
        "name": np.arange(workers).astype(str),
        "host": addresses,
        "threads": np.full(workers, threads),
        "memory_limit": np.full(workers, 3 * GIB),
        "start": T + np.linspace(0, EARLY, workers),
        "stop": np.full(workers, T + end),
        "cpu_seconds": np.full(workers, float(wall.sum()) * 0.7 / workers),
    }
    reading = np.repeat(index[gave][:2000], len(BRANCHES))
    part = np.tile(np.arange(len(BRANCHES)), len(reading) // len(BRANCHES))
    sizes = payload[reading] // len(BRANCHES) // 2 * 2
    basket = 2 * (reading - 2 * (reading % 10 == 5))  # the last but one chunk, of the same file, read the same baskets
    reads = {
        "chunk": reading,
        "branch": np.array(BRANCHES)[part],
        "bytes_payload": sizes,
        "bytes_again": np.zeros(len(reading), np.int64),
        "bytes_uncompressed": 2 * sizes,
        "baskets": np.full(len(reading), 2),
        "basket_first": basket,
        "basket_last": basket + 1,
        "basket_bytes": [[int(size) // 2] * 2 for size in sizes],
        "read_seconds": np.full(len(reading), 0.01),
        "decompress_seconds": np.full(len(reading), 0.01),
        "interpret_seconds": np.full(len(reading), 0.01),
    }
    passed = np.tile(index[:2000], 3)
    place = np.repeat(np.arange(3), len(passed) // 3)
    share = np.array([0.5, 0.3, 0.1])[place]
    sections = {
        "chunk": passed,
        "name": np.array(["selection", "selection/jets", "histograms"])[place],
        "count": np.ones(len(passed), np.int64),
        "wall_seconds": wall[passed] * share,
        "self_seconds": wall[passed] * share,
        "cpu_seconds": wall[passed] * share * 0.7,
        "max_seconds": wall[passed] * share,
        "errors": np.zeros(len(passed), np.int64),
    }
    opened = {
        "id": np.arange(6),
        "dataset": np.repeat(DATASETS, 2),
        "file": files,
        "start": T + np.linspace(0.2, 0.7, 6),
        "stop": T + np.linspace(0.6, 1.1, 6),
        "bytes_requested": np.full(6, 100_000),
        "outcome": ["ok"] * 6,
    }
    fields: dict[str, Any] = {
        "start": T,
        "stop": T + end,
        "calls": (),
        "asked": None,
        "chunks": table(CHUNK_COLUMNS, number, chunks),
        "branch_reads": table(BRANCH_READ_COLUMNS, len(reading), reads),
        "sections": table(SECTION_COLUMNS, len(passed), sections),
        "preprocessing": table(PREPROCESSING_COLUMNS, 6, opened),
        "tasks": table(TASK_COLUMNS, number + slots, tasks),
        "attempts": {"processor": number, "merge": slots},
        "samples": table(SAMPLE_COLUMNS, len(worker), sampled),
        "lifetimes": table(LIFETIME_COLUMNS, workers, lifetimes),
        "worker_requests": table(
            REQUEST_COLUMNS, workers, {"name": lifetimes["name"], "state": np.full(workers, "submitted")}
        ),
    }
    return handmade_run(**fields | changes)
