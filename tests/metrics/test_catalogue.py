import pytest

from roastcoffea.metrics import CATALOGUE, GROUPS
from roastcoffea.metrics.catalogue import RAW, Catalogue, Fact, metric
from roastcoffea.metrics.workflow import data_rate_gbps
from roastcoffea.units import COUNT

METRICS = list(CATALOGUE.metrics())
STRUCTURES = {
    "byte_ledger",
    "custom",
    "file_read_metrics",
    "fine_metrics_per_worker",
    "per_dataset",
    "sections",
    "time_ledger",
    "verdict",
}


@pytest.mark.parametrize("entry", METRICS, ids=lambda entry: entry.name)
def test_every_metric_says_what_it_is(entry):
    assert entry.meaning.split("\n")[0].endswith((".", ":"))
    assert entry.source
    assert entry.label
    assert entry.formula
    assert entry.group in GROUPS
    assert (entry.unit.symbol == "structure") == (entry.group == RAW or entry.name in STRUCTURES)


def test_metrics_come_group_by_group():
    positions = [GROUPS.index(entry.group) for entry in METRICS]
    assert positions == sorted(positions)


def test_formula_is_the_functions_own_arithmetic():
    entry = CATALOGUE.entries["core_efficiency"]
    assert entry.formula == "total_cpu_time / (elapsed_time_seconds * total_cores)"


def test_a_metric_stays_a_function():
    assert data_rate_gbps(1e9, 8.0) == pytest.approx(1.0)


def test_aliases_of_older_versions():
    assert CATALOGUE.aliases == {
        "wall_time": "elapsed_time_seconds",
        "processor_io_wait_time_seconds": "processor_noncpu_time_seconds",
        "processor_cpu_percent": "processor_cpu_percentage",
        "processor_io_wait_percent": "processor_noncpu_percentage",
        "overhead_io_wait_time_seconds": "overhead_noncpu_time_seconds",
        "time_worker_seconds": "time_worker_overhead_seconds",
        "time_on_the_way_seconds": "time_in_flight_seconds",
        "time_idle_placement_seconds": "time_idle_misplaced_seconds",
    }


def test_an_input_must_be_defined_before_it_is_used():
    catalogue = Catalogue()

    with pytest.raises(ValueError, match="later needs nowhere, which the catalogue does not have yet"):

        @metric(COUNT, group=RAW, source="test", catalogue=catalogue)
        def later(nowhere):
            """Never."""


def test_a_cycle_cannot_be_defined():
    with pytest.raises(ValueError, match="round needs round"):
        Catalogue().add(Fact(name="round", function=abs, inputs=("round",)))


@pytest.mark.parametrize("name", ["run", "here", "formerly"])
def test_a_name_is_given_once(name):
    catalogue = Catalogue()

    @metric(COUNT, group=RAW, source="test", catalogue=catalogue, alias="formerly")
    def here(run):
        """Return it."""

    with pytest.raises(ValueError, match=f"{name} is already in the catalogue"):
        catalogue.add(Fact(name=name, function=abs, inputs=("run",)))


def test_a_group_must_be_known():
    with pytest.raises(ValueError, match="'odd'; choose one of"):
        metric(COUNT, group="odd", source="test", catalogue=Catalogue())(lambda run: run)
