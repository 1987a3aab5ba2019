"""A measurement: what it says of its run, and that it can be saved and loaded."""

import io
from dataclasses import replace

import pytest
from handmade import handmade_run, run_without_tables

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.storage.store import save_run


def test_frames_and_metrics_are_computed_once():
    measurement = Measurement(handmade_run())
    assert measurement.chunks is measurement.chunks
    assert measurement.metrics is measurement.metrics


def test_what_the_run_says():
    run = handmade_run(outcome="failed", error="boom", problems=("one", "two"))
    measurement = Measurement(run)
    assert measurement.run is run
    assert (measurement.outcome, measurement.error, measurement.problems) == (
        "failed",
        "boom",
        ["one", "two"],
    )
    assert measurement.fine_metrics == dict(run.span_metrics)
    assert Measurement(run_without_tables()).fine_metrics == {}
    assert "'by hand': failed" in repr(measurement)
    assert repr(measurement.run).startswith("<Run 'by hand': failed, ")
    assert len(repr(replace(measurement.run, name="x" * 1000))) < 160
    assert repr(replace(measurement.run, name=None, chunks=None)).endswith(" s>")


def test_print_summary_into_a_file():
    file = io.StringIO()
    Measurement(handmade_run()).print_summary(file)
    assert "1 min 40 s" in file.getvalue()


@pytest.mark.parametrize("options", [{}, {"all": True}, {"group": "bytes"}])
def test_the_summary_is_what_is_printed(options, capsys):
    measurement = Measurement(handmade_run())
    measurement.print_summary(**options)
    assert measurement.summary(**options) == capsys.readouterr().out
    assert "1 min 40 s" in measurement.summary()


def test_older_keywords_are_taken(tmp_path):
    measurement = Measurement(handmade_run())
    assert measurement.save(folder=tmp_path, name="mine") == tmp_path / "mine"
    assert measurement.report(file=tmp_path / "page.html").exists()
    measurement.plot("byte_ledger", output_path=tmp_path / "ledger.png")
    assert (tmp_path / "ledger.png").exists()
    with pytest.raises(TypeError, match=r"report\(\) takes either path= or its older name file=, not both"):
        measurement.report(path=tmp_path / "a.html", file=tmp_path / "b.html")
    with pytest.raises(TypeError, match="multiple values for argument 'path'"):
        measurement.save(tmp_path, folder=tmp_path)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    saved = Measurement(handmade_run())
    path = saved.save(tmp_path, "mine")
    assert path == tmp_path / "mine"
    loaded = load(path)
    assert loaded.run == saved.run
    assert dict(loaded.metrics) == dict(saved.metrics)
    assert loaded.problems == []


def test_a_measurement_is_replaced_only_on_demand(tmp_path):
    measurement = Measurement(handmade_run())
    measurement.save(tmp_path, "mine")
    with pytest.raises(MeasurementError):
        measurement.save(tmp_path, "mine")
    assert measurement.save(tmp_path, "mine", overwrite=True) == tmp_path / "mine"


def test_a_run_of_which_nothing_was_measured_can_be_saved(tmp_path):
    loaded = load(save_run(run_without_tables(), tmp_path))
    assert list(loaded.metrics) == ["elapsed_time_seconds"]
    assert loaded.error == "ValueError: boom"
