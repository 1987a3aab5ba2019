"""Trees of thread time: no box is wider than the one that it is in, and each is what its records say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from handmade import handmade_run
from pictures import synthetic_run
from profiled import PROCESS, profile_table

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.phases import PHASES
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PROFILE_COLUMNS, Run
from roastcoffea.report.page.figures import Chart, Context
from roastcoffea.report.page.trees import flame_graph, icicle
from roastcoffea.visualization.inputs import inputs_of


def context(run: Run) -> Context:
    return Context(inputs_of(Measurement(run)), run.start, run.stop, None, every_task=False)


def boxes(chart: Chart, tree: int = 0) -> pd.DataFrame:
    return pd.DataFrame(chart.facts["trees"][tree])


def parents(found: pd.DataFrame) -> list[int]:
    """Row of the box that each box is in; -1 for the first one."""
    rows: list[int] = []
    for row in found.itertuples():
        middle: Any = row.left + row.width / 2
        above = found[(found["depth"] == row.depth - 1) & (found["left"] <= middle)]
        rows.append(int(above.index[above["left"] + above["width"] >= middle][0]) if row.depth else -1)
    return rows


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(profile=profile_table())


@pytest.mark.parametrize("make", [flame_graph, icicle])
def test_boxes_lie_within_the_one_above(make: Any, run: Run) -> None:
    found = boxes(make(context(run)))
    for row, parent in zip(found.itertuples(), parents(found), strict=True):
        if parent >= 0:
            above = found.loc[parent]
            assert row.left >= above["left"] - 1e-9
            assert row.left + row.width <= above["left"] + above["width"] + 1e-6


def test_functions_have_the_time_of_the_profile(run: Run) -> None:
    found, profile = boxes(flame_graph(context(run))), Measurement(run).profile
    assert found["width"][0] == pytest.approx(profile.seconds)
    tree = profile.tree()
    level = found[found["depth"] == 1]
    assert list(level["width"]) == pytest.approx([child.seconds for child in tree.children])
    assert [name.partition(":")[0] for name in level["name"]] == [child.place.function for child in tree.children]


def test_files_have_the_phases_of_their_chunks(run: Run) -> None:
    measurement = Measurement(run)
    found = boxes(icicle(context(run)))
    assert found["width"][0] == pytest.approx(measurement.time_ledger.total)
    found["parent"] = parents(found)
    chunks = measurement.chunks[measurement.chunks["outcome"] == "ok"]
    for place, file in found[found["name"].isin(set(chunks["file"]))].iterrows():
        dataset = found.loc[file["parent"], "name"]
        here = chunks[(chunks["file"] == file["name"]) & (chunks["dataset"] == dataset)]
        phases = found[found["parent"] == place]
        assert len(phases) > 3
        for phase in phases.itertuples():
            assert phase.width == pytest.approx(here[f"{phase.name}_seconds"].sum())


def test_sections_have_their_wall_time_and_the_rest_is_outside(run: Run) -> None:
    measurement = Measurement(run)
    found = boxes(icicle(context(run)), 1)
    assert set(found["label"]) == {"sections"}
    found["parent"] = parents(found)
    assert run.sections is not None
    chunks = measurement.chunks.set_index("id")
    passed = run.sections.to_pandas().set_index("chunk").join(chunks[["dataset", "file", "outcome"]])
    passed = passed[passed["outcome"] == "ok"]
    files = found[found["name"].isin(set(chunks["file"]))]
    assert len(files) > 3
    for place, file in files.iterrows():
        dataset = found.loc[file["parent"], "name"]
        here = passed[(passed["file"] == file["name"]) & (passed["dataset"] == dataset)]
        inside = found[found["parent"] == place].set_index("name")["width"]
        outer = here[~here["name"].str.contains("/")].groupby("name")["wall_seconds"].sum()
        for name, seconds in outer.items():
            assert inside[name] == pytest.approx(seconds)
        assert inside.sum() == pytest.approx(file["width"])


def test_what_is_of_no_dataset_stands_beside_them(run: Run) -> None:
    found, ledger = boxes(icicle(context(run))), Measurement(run).time_ledger
    top = found[found["depth"] == 1].set_index("name")["width"]
    assert top["idle: tail"] == pytest.approx(ledger["idle: tail"])
    assert top.sum() == pytest.approx(ledger.total, rel=0.01)


UPROOT = "uproot/behaviors/TBranch.py"
WAITED: list[tuple[list[tuple[str, str, int]], float, float, float, str]] = [
    # frames below process(); seconds on a core, runnable, blocked; family
    ([("filled", "/home/p.py", 20)], 3.0, 0.5, 0.5, "computing"),
    ([("slept", "/home/p.py", 30)], 0.25, 0.0, 2.0, "trouble"),
    ([("starved", "/home/p.py", 40)], 1.0, 2.0, 0.0, "computing"),
    ([("idled", "/home/p.py", 50)], 0.5, 2.0, 1.0, "trouble"),
    ([("array", UPROOT, 1), ("get", "queue.py", 2), ("wait", "threading.py", 3)], 0.0, 0.0, 9.0, "reading"),
    ([("array", UPROOT, 1), ("decompress", "uproot/compression.py", 4)], 4.0, 0.25, 0.25, "decoding"),
    ([("array", UPROOT, 1), ("locked", "uproot/compression.py", 5)], 0.5, 0.0, 1.0, "trouble"),
]


def test_frames_have_the_colour_of_what_took_the_most_of_their_time() -> None:
    names = [column.name for column in PROFILE_COLUMNS]
    rows = [
        dict(zip(names, ["c1", "tt", *zip(PROCESS, *frames, strict=True), 1, sum(states), *states, None], strict=True))
        for frames, *states, _ in WAITED
    ]
    chart = flame_graph(context(synthetic_run(profile=table_of_rows(PROFILE_COLUMNS, rows))))
    found = boxes(chart).drop_duplicates("name").set_index("name")["paint"]
    assert {frames[-1][0]: family for frames, *_, family in WAITED} == {
        frames[-1][0]: found[frames[-1][0]] for frames, *_ in WAITED
    }
    assert found["array"] == "reading"
    assert set(chart.legend.values()) == set(found)


def test_preprocessing_of_a_dataset_is_a_part_of_its_own() -> None:
    measurement = Measurement(handmade_run())
    found = boxes(icicle(context(measurement.run)))
    (data,) = found.index[found["name"] == "data"]
    (part,) = found[(found["name"] == "preprocessing") & (np.array(parents(found)) == data)].itertuples()
    assert part.paint == "opening"
    assert part.width == pytest.approx(measurement.time_ledger.by("dataset").loc["data", "preprocessing"])


@pytest.mark.slow
def test_of_many_datasets_the_small_ones_are_one_box() -> None:
    number = 400
    run = synthetic_run(workers=20, threads=2, rounds=number // 20)
    datasets = pa.array([f"set {place}" for place in range(len(run.chunks))])
    chunks = run.chunks.set_column(run.chunks.schema.get_field_index("dataset"), "dataset", datasets)
    found = boxes(icicle(context(replace(run, chunks=chunks))))
    computed = pc.sum(pc.equal(chunks["outcome"], "ok")).as_py()
    top = found[(found["depth"] == 1) & found["name"].str.contains("datasets")]
    shown = found[(found["depth"] == 1) & found["name"].str.startswith("set ")]
    (together,) = top.itertuples()
    assert int(together.name.split()[0].replace(",", "")) == computed - len(shown)
    assert together.width > found["width"][0] / 2


def test_of_many_files_the_small_ones_are_one_box_with_their_time() -> None:
    run = synthetic_run(workers=20, threads=2, rounds=10)
    columns = run.chunks.schema.names
    files = pa.array([f"file {place}" for place in range(len(run.chunks))])
    chunks = run.chunks.set_column(columns.index("file"), "file", files)
    chunks = chunks.set_column(columns.index("dataset"), "dataset", pa.array(["set"] * len(chunks)))
    found = boxes(icicle(context(replace(run, chunks=chunks))))
    frame = chunks.filter(pc.equal(chunks["outcome"], "ok")).to_pandas().set_index("file")
    seconds = frame[[phase.column for phase in PHASES]].sum(axis=1).sort_values(ascending=False)
    shown = found[found["name"].str.startswith("file ")]
    (together,) = found[found["name"].str.contains("more files")].itertuples()
    assert list(shown["width"]) == pytest.approx(list(seconds[: len(shown)]))
    assert set(shown["name"]) <= set(seconds[seconds >= seconds.iloc[len(shown) - 1] - 1e-9].index)
    assert together.name == f"{len(seconds) - len(shown)} more files"
    assert together.width == pytest.approx(seconds[len(shown) :].sum())


def test_without_samples_there_is_no_flame_graph() -> None:
    with pytest.raises(NotMeasuredError, match="profile"):
        flame_graph(context(handmade_run(profile=None)))
