"""The sample is whole, plausible and read without warnings, and the analysis finds what is in it."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot
from coffea.nanoevents import NanoAODSchema, NanoEventsFactory
from coffea.processor import IterativeExecutor, Runner

from roastcoffea.cli.sample import COLLECTIONS, COMPRESSIONS, DijetProcessor, write_sample

SMALL = {"files": 2, "events": 1500, "baskets": 3}


def paths(fileset: dict) -> list[Path]:
    return [Path(path) for dataset in fileset.values() for path in dataset["files"]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return write_sample(tmp_path_factory.mktemp("sample"), **SMALL)


@pytest.fixture(scope="module")
def output(sample: dict) -> dict:
    runner = Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=400)
    return runner(sample, treename="Events", processor_instance=DijetProcessor())


def events_of(path: Path) -> ak.Array:
    return NanoEventsFactory.from_root({str(path): "Events"}, schemaclass=NanoAODSchema, mode="eager").events()


@pytest.mark.slow
def test_files_baskets_and_events_are_as_many_as_asked_for(sample: dict) -> None:
    assert list(sample) == ["qcd", "zprime"]
    assert len(paths(sample)) == 4
    for path in paths(sample):
        with uproot.open(path) as file:
            tree = file["Events"]
            assert tree.num_entries == 1500
            assert {branch.num_baskets for branch in tree.branches} == {3}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_compression_is_the_one_in_the_file(compression: str, tmp_path: Path) -> None:
    fileset = write_sample(tmp_path, datasets=["qcd"], files=1, events=500, baskets=1, compression=compression)
    with uproot.open(paths(fileset)[0]) as file:
        branch = file["Events"]["Jet_pt"]
        found = file.file.compression
        factor = branch.uncompressed_bytes / branch.compressed_bytes
    assert (found.name.lower() if found else "none") == compression
    assert factor > 1.1 if found else factor == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_nanoaod_schema_reads_all_collections_and_follows_their_references(sample: dict) -> None:
    events = events_of(paths(sample)[0])
    assert set(COLLECTIONS) < set(events.fields)
    assert ak.all(events.Muon.matched_jet.pt > 0)
    assert ak.all(events.Jet.pt[:, :-1] >= events.Jet.pt[:, 1:])


def test_event_numbers_are_unique_in_a_dataset(sample: dict) -> None:
    numbers = np.concatenate(
        [uproot.open(path)["Events"]["event"].array(library="np") for path in sample["qcd"]["files"]]
    )
    assert sorted(numbers) == list(range(1, 3001))


@pytest.mark.slow
def test_equal_parameters_give_equal_events_whatever_else_is_made(sample: dict, tmp_path: Path) -> None:
    again = write_sample(tmp_path, datasets=["zprime"], **SMALL)
    for one, other in zip(sample["zprime"]["files"], again["zprime"]["files"], strict=True):
        with uproot.open(one) as left, uproot.open(other) as right:
            assert ak.array_equal(left["Events"].arrays(), right["Events"].arrays())


@pytest.mark.slow
def test_the_processor_finds_the_resonance_where_it_was_put(output: dict) -> None:
    spectrum = output["zprime"]["mass"]
    peak = spectrum.axes[0].centers[np.argmax(spectrum.values())]
    assert peak == pytest.approx(500, abs=30)
    assert output["zprime"]["dijet_events"] > 0.99 * 3000
    assert output["qcd"]["mass"].values()[45:55].sum() < 0.1 * spectrum.values()[45:55].sum()


@pytest.mark.slow
def test_the_processor_agrees_with_an_event_loop(sample: dict, output: dict) -> None:
    masses = [mass for path in sample["qcd"]["files"] for mass in dijet_masses(Path(path))]
    spectrum = output["qcd"]["mass"]
    assert output["qcd"]["events"] == 3000
    assert output["qcd"]["dijet_events"] == len(masses)
    assert np.array_equal(spectrum.values(), np.histogram(masses, spectrum.axes[0].edges)[0])


def dijet_masses(path: Path) -> Iterator[float]:
    with uproot.open(path) as file:
        rows = file["Events"].arrays(filter_name="/(Jet|Muon)_(pt|eta|phi|mass)/").to_list()
    for row in rows:
        muons = [muon for muon in objects(row, "Muon") if muon["pt"] > 10]
        jets = [
            jet
            for jet in objects(row, "Jet")
            if jet["pt"] > 30 and abs(jet["eta"]) < 2.5 and all(distance(jet, muon) > 0.4 for muon in muons)
        ]
        if len(jets) >= 2:
            energy, x, y, z = (sum(component) for component in zip(*map(momentum, jets[:2]), strict=True))
            yield math.sqrt(energy**2 - x**2 - y**2 - z**2)


def objects(row: dict, collection: str) -> list[dict[str, float]]:
    names = [name for name in row if name.startswith(f"{collection}_")]
    columns = zip(*(row[name] for name in names), strict=True)
    return [{name.split("_")[1]: value for name, value in zip(names, values, strict=True)} for values in columns]


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    return math.hypot(one["eta"] - other["eta"], math.remainder(one["phi"] - other["phi"], 2 * math.pi))


def momentum(jet: dict[str, float]) -> tuple[float, float, float, float]:
    x, y, z = (jet["pt"] * factor for factor in (math.cos(jet["phi"]), math.sin(jet["phi"]), math.sinh(jet["eta"])))
    return math.hypot(jet["mass"], x, y, z), x, y, z


@pytest.mark.slow
def test_a_complete_sample_is_used_again(sample: dict) -> None:
    times = [path.stat().st_mtime_ns for path in paths(sample)]
    folder = paths(sample)[0].parent.parent
    assert write_sample(folder, **SMALL) == sample
    assert [path.stat().st_mtime_ns for path in paths(sample)] == times
    assert write_sample(folder, **SMALL | {"events": 100}) != sample
    assert [path.stat().st_mtime_ns for path in paths(sample)] == times


def test_an_interrupted_sample_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def interrupted(path: Path, *rest: object) -> None:
        path.write_bytes(b"half")
        written.append(path)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("roastcoffea.cli.sample.write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_sample(tmp_path, **SMALL)
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_that_make_the_same_sample_get_one(tmp_path: Path) -> None:
    made: list[dict] = []
    threads = [threading.Thread(target=lambda: made.append(write_sample(tmp_path, **SMALL))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert [path.name for path in tmp_path.iterdir()] == [paths(made[0])[0].parent.name]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"datasets": ["ttbar"]}, "'ttbar'; choose from qcd, zprime"),
        ({"compression": "rar"}, "'rar'; choose from zlib"),
        ({"files": 0}, "at least one"),
        ({"baskets": 2000}, "2000 baskets for 1500 events"),
        ({"baskets": 0}, "0 baskets"),
    ],
)
def test_a_sample_that_cannot_be_made_is_refused(wrong: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        write_sample(tmp_path, **SMALL | wrong)
    assert list(tmp_path.iterdir()) == []
