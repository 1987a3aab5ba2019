import pytest

from roastcoffea.metrics import CATALOGUE, GROUPS
from roastcoffea.metrics.catalogue import RAW, Catalogue, Fact, metric
from roastcoffea.units import COUNT

METRICS = list(CATALOGUE.metrics())
STRUCTURES = {
    "byte_ledger",
    "write_ledger",
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


def test_formula_is_the_functions_own_arithmetic():
    entry = CATALOGUE.entries["core_efficiency"]
    assert entry.formula == "total_cpu_time / (elapsed_time_seconds * total_cores)"


def test_an_input_must_be_defined_before_it_is_used():
    catalogue = Catalogue()

    with pytest.raises(ValueError, match="later needs inputs that are not in the catalogue yet: nowhere"):

        @metric(COUNT, group=RAW, source="test", catalogue=catalogue)
        def later(nowhere):
            """Never."""


def test_a_cycle_cannot_be_defined():
    with pytest.raises(ValueError, match="catalogue yet: round"):
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
