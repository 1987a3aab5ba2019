"""The branch study: payload is that of the files' own baskets, and what output size stands for is said."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from typing import Any

import awkward as ak
import cloudpickle
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import uproot
from coffea.processor import ProcessorABC

from roastcoffea.errors import ComparisonError
from roastcoffea.studies.branches import COLUMNS, BranchStudy, branch_study, pickled_size

SOME = ("pt", "eta", "phi", "mass")
COUNTS = [1, 2, 4]


class Columns(ProcessorABC):
    """Reads the first of these columns of jets, or of muons; gives their sums, or all of them."""

    def __init__(self, count: int, collection: str = "Jet", keep: bool = False) -> None:
        self.count = count
        self.collection = collection
        self.keep = keep

    def process(self, events: Any) -> dict[str, Any]:
        read = {name: ak.materialize(events[self.collection][name]) for name in SOME[: self.count]}
        if self.keep:
            return {name: [ak.to_numpy(ak.flatten(column))] for name, column in read.items()}
        return {"sum": float(sum(ak.sum(column) for column in read.values()))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def paths(fileset: dict[str, Any]) -> list[str]:
    return [path for dataset in fileset.values() for path in dataset["files"]]


def baskets(path: str, count: int, collection: str = "Jet") -> int:
    """Compressed bytes of all baskets of these branches and of the counter, by uproot alone."""
    with uproot.open(path) as file:
        names = [*(f"{collection}_{name}" for name in SOME[:count]), f"n{collection}"]
        return sum(int(file["Events"][name].compressed_bytes) for name in names)


@pytest.fixture(scope="module")
def study(sample: dict[str, Any]) -> BranchStudy:
    return branch_study(Columns, sample, COUNTS, chunksize=4000)


@pytest.mark.slow
def test_payload_is_that_of_the_branches_that_were_read(study: BranchStudy, sample: dict[str, Any]) -> None:
    assert list(study.table["bytes_payload"]) == [sum(baskets(path, n) for path in paths(sample)) for n in COUNTS]
    assert list(study.table["branches_read"]) == [2, 3, 5]
    assert (study.table["bytes_payload"] + study.table["bytes_metadata"] == study.table["bytes_read"]).all()


@pytest.mark.filterwarnings("ignore:Branch Photon_:RuntimeWarning")
@pytest.mark.slow
def test_payload_of_a_real_file(real_files: dict[str, Any]) -> None:
    fileset = {"dy": real_files["dy"]}
    found = branch_study(Columns, fileset, COUNTS, chunksize=20)
    (path,) = paths(fileset)
    assert list(found.table["bytes_payload"]) == [baskets(path, count) for count in COUNTS]
    assert found.notes == ["results as sent: not measured, because only Dask's scheduler records it"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Branch Photon_:RuntimeWarning")
def test_embedded_baskets_are_explained(real_files: dict[str, Any]) -> None:
    found = branch_study(Columns, {"ttbar": real_files["ttbar"]}, [1, 4])
    assert (found.table["bytes_payload"] == 0).all()
    assert (found.table["bytes_uncompressed"] > 0).all()
    (note, _) = found.notes
    assert "embedded in the tree's metadata" in note


def test_growth_and_correlation(study: BranchStudy) -> None:
    payload = study.table["bytes_payload"].to_numpy(dtype=float)
    assert list(study.ratios["bytes_payload"]) == pytest.approx(payload / payload[0])
    expected = np.corrcoef([2, 3, 5], payload)[0, 1]
    assert study.correlation("branches_read", "bytes_payload") == pytest.approx(expected)
    assert "the output size does not depend on the bytes read" in study.sentence


def test_two_counts_do_not_tell_whether_input_and_output_go_together(study: BranchStudy) -> None:
    two = BranchStudy(study.table.iloc[[0, 2]].assign(bytes_output=[100, 400]), ())
    assert "merged output (pickled, uncompressed) x4: a correlation needs three or more counts" in two.sentence


@pytest.mark.slow
def test_output_that_keeps_columns_grows_with_them(client: Any, sample: dict[str, Any]) -> None:
    found = branch_study(lambda count: Columns(count, keep=True), sample, COUNTS, client=client, chunksize=4000)
    assert found.notes == []
    assert found.table.attrs["absent"] == {}
    tasks = found.measurements[-1].tasks
    results = tasks[tasks["kind"] == "processor"]["nbytes"]
    last = found.table.iloc[-1]
    assert (last["bytes_results"], last["tasks"], last["bytes_per_task"]) == (results.sum(), 4, results.mean())
    assert (last["chunks"], last["events"]) == (4, 16_000)
    pair = found.scaling["bytes_payload"]
    sizes = found.table[["bytes_payload", "bytes_results"]].astype(float)
    factors = sizes / sizes.iloc[0]
    assert (pair.read_factor, pair.output_factor) == pytest.approx(tuple(factors.mean()))
    assert pair.difference == pytest.approx((factors["bytes_payload"] - factors["bytes_results"]).abs().mean())
    assert pair.correlation == pytest.approx(np.corrcoef(sizes.T)[0, 1])
    assert found.scaling["bytes_read"].sentence.startswith("Bytes read and results as sent ")
    figure = found.plot(by="asked")
    assert [ax.get_title() for ax in figure.axes][:3] == ["Bytes read", "Results as sent", "Mean task output as sent"]
    assert {tuple(line.get_xdata()) for ax in figure.axes for line in ax.lines} == {tuple(COUNTS)}
    assert np.asarray(figure.axes[2].lines[0].get_ydata()) * 1e3 == pytest.approx(found.table["bytes_per_task"])
    assert found.ratios["bytes_output"].iloc[-1] == pytest.approx(4, rel=0.05)
    assert "output size indicates how many columns are kept" in found.sentence


def test_output_has_its_true_size_whatever_it_is_made_of() -> None:
    array = ak.Array(np.arange(80_000, dtype=np.float32))
    assert pickled_size({"jets": array}) == pytest.approx(320_000, rel=0.01)
    assert pickled_size({"jets": array}) == len(cloudpickle.dumps({"jets": array}))
    assert pickled_size(io.StringIO) is not None
    assert pickled_size({"lock": threading.Lock()}) is None


@pytest.mark.parametrize("counts", [["1", "2"], 3, [1.5, 2], "12", [1], [1, 1], [-1, 2], None, [True, 2]])
def test_counts_that_are_none_are_refused_before_anything_runs(counts: Any) -> None:
    with pytest.raises(ComparisonError, match="counts must contain at least two distinct numbers of branches"):
        branch_study(pytest.fail, {}, counts)


@pytest.mark.slow
def test_the_picture_has_four_panels(study: BranchStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)  # else it would be one of pyplot's figures
    figure = study.plot(tmp_path / "study.png")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["Input", "Output", "Growth from the first count", "Output against input"]
    (payload,) = [line for line in figure.axes[0].lines if line.get_label() == "payload"]
    assert payload.get_xdata() == pytest.approx([2, 3, 5])
    assert np.asarray(payload.get_ydata()) == pytest.approx(study.table["bytes_payload"].astype(float) / 1e6)
    assert (tmp_path / "study.png").stat().st_size > 10_000
    assert mpl.rcParams["axes.spines.top"]


def test_without_a_scheduler_there_is_no_picture_of_results(study: BranchStudy) -> None:
    absent = study.table.attrs["absent"]
    assert absent.keys() == {"tasks", "bytes_results", "bytes_per_task"}
    with pytest.raises(
        ValueError, match=f"results as sent: not measured, {absent['bytes_results']}; pass a client to branch_study"
    ):
        study.plot(by="asked")
    with pytest.raises(ValueError, match="by='branches': choose one of 'read', 'asked'"):
        study.plot(by="branches")


def test_it_is_printed_with_units(study: BranchStudy) -> None:
    file = io.StringIO()
    study.print(file)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert study.sentence.split()[0] in text
    assert "| payload |" in study.markdown()
    assert study.table.attrs["units"]["bytes_payload"] == "B"


def growth(counts: list[int], **columns: list[float | None]) -> BranchStudy:
    """Amounts that are twice the count, but for those that are given."""
    table = {name: [2.0 * count for count in counts] for name in COLUMNS} | {"branches_asked": counts} | columns
    return BranchStudy(pd.DataFrame(table))


def test_growth_is_from_the_first_count() -> None:
    found = growth([1, 2, 5], bytes_results=[10.0, 10.0, 40.0])
    assert found.ratios["bytes_results"].tolist() == [1.0, 1.0, 4.0]
    assert (found.growth("bytes_results"), found.growth("bytes_read")) == (4.0, 5.0)
    assert found.correlation("branches_read", "bytes_read") == pytest.approx(1.0)


def test_what_is_0_or_unknown_does_not_grow() -> None:
    found = growth([1, 2, 5], bytes_payload=[0.0, 1.0, 2.0], bytes_results=[None, 1.0, 2.0])
    assert found.growth("bytes_payload") is None
    assert found.growth("bytes_results") is None
    assert found.correlation("branches_read", "bytes_results") is None
    assert found.known(["bytes_payload", "bytes_results"]).keys() == {"bytes_payload"}


def test_input_and_output_scale_alike_or_differ() -> None:
    found = growth([1, 2, 4], bytes_read=[10.0, 20.0, 40.0], bytes_results=[100.0, 210.0, 440.0])
    pair = found.compared("bytes_read", "bytes_results")
    assert (pair.read_factor, pair.output_factor) == pytest.approx((7 / 3, 7.5 / 3))
    assert pair.difference == pytest.approx(0.5 / 3)
    assert pair.alike
    assert pair.sentence == (
        "Bytes read and results as sent scale alike: x2.33 and x2.5 on average; "
        "the mean difference of 0.167 is below 0.2."
    )
    apart = growth([1, 2, 4], bytes_results=[100.0, 100.0, 100.0]).compared("bytes_read", "bytes_results")
    assert (apart.alike, apart.correlation) == (False, None)
    assert apart.sentence.startswith("Bytes read and results as sent differ: x2.33 and x1 on average")
    assert growth([1, 2], bytes_payload=[0.0, 1.0]).compared("bytes_payload", "bytes_results") is None
