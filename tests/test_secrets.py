"""Secrets that are planted in a run: none is in what is written, and none in what is printed."""

from __future__ import annotations

import base64
import gzip
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import ClientError
from analyses import Indiscreet, careless, runner_for
from coffea.nanoevents import BaseSchema
from coffea.processor import FuturesExecutor, IterativeExecutor, Runner
from distributed import Client
from pages import contents, found_in, write_everything
from releases import NO_RETRIES, needs_kinds_of_skips
from stand_ins import CLIENT, TOKEN, Scheduler, Task, started_plugin
from stand_ins import NAME as PLUGIN
from stored import REFUSED, CountingServer, served, write_tree

import roastcoffea
from roastcoffea import MetricsCollector, TaskMonitor
from roastcoffea.backends.attempts import LONGEST_TEXT
from roastcoffea.cli import main
from roastcoffea.errors import MeasurementError
from roastcoffea.instrument.calls import active, coffea_report
from roastcoffea.instrument.channels import DaskTask
from roastcoffea.instrument.probe import Probe, _Opening
from roastcoffea.log.journal import ENDING
from roastcoffea.log.workers import ClusterLog
from roastcoffea.measurement import Measurement
from roastcoffea.monitor import views
from roastcoffea.monitor.task_monitor import Watch
from roastcoffea.recording.auto import record
from roastcoffea.records.workers import ERROR
from roastcoffea.redaction import MASK, add_pattern, redacted, remove_pattern

ROOT_URL = "Plant1OfRoot"
HTTP_QUERY = "Plant2OfQuery"
OPTIONS = "Plant3OfOptions"
USERS_ERROR = "Plant4OfUser"
SERVERS_ERROR = "Plant5OfServer"
SECTION = "Plant6OfSection"
REPORT = "Plant7OfReport"
DATASET = "Plant8OfDataset"
SECRETS = (ROOT_URL, HTTP_QUERY, OPTIONS, USERS_ERROR, SERVERS_ERROR, SECTION, REPORT, DATASET)
TICKET = "TGT-Plant9"
"""What only a pattern of the user's finds."""

pytestmark = pytest.mark.filterwarnings("ignore:Skipping bad file")

NAME = f"qcd?token={DATASET}"
"""Of the dataset."""


class Planted(NamedTuple):
    """Input with secrets, and what processors say of them."""

    fileset: dict[str, Any]
    options: dict[str, Any]
    section: str
    error: str


@pytest.fixture
def own_patterns(no_patterns: None) -> None:
    """A pattern of the user's, for one test."""
    add_pattern("ticket", r"TGT-\w+")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    write_tree(folder / "f.root", baskets=2)
    with served(folder) as server:
        yield server


@pytest.fixture
def planted(server: CountingServer) -> Planted:
    files = [
        server.url(f"f.root?authz={HTTP_QUERY}&n=1"),
        server.url(f"{REFUSED}?X-Amz-Signature={SERVERS_ERROR}&n=1"),
        f"root://jane:{ROOT_URL}@{server.server_name}:1//store/g.root",
    ]
    options = {"headers": {"Authorization": f"Bearer {OPTIONS}"}}
    return Planted(
        fileset={NAME: {"files": dict.fromkeys(files, "Events"), "metadata": {"year": 2026}}},
        options=options,
        section=f"http://weights.example.org/w.json?sig={SECTION}&t={TICKET}",
        error=f"login failed: password={USERS_ERROR}, {options}, {TICKET}",
    )


def run(runner_with: Callable[..., Runner], planted: Planted) -> dict[str, Any]:
    """Two Runner calls: one that skips the files that cannot be opened, and one that raises what it should."""
    skipping = runner_with(skipbadfiles=(Exception,))
    output, _ = skipping(
        planted.fileset, processor_instance=Indiscreet(planted.section), uproot_options=planted.options
    )
    good = dict(list(planted.fileset[NAME]["files"].items())[:1])
    with pytest.raises(Exception, match=USERS_ERROR) as raised:
        runner_with()(
            {NAME: {"files": good}},
            processor_instance=Indiscreet(planted.section, planted.error),
            uproot_options=planted.options,
        )
    assert HTTP_QUERY in str(raised.value)
    return dict(output)


def local_runner(executor: Any, **options: Any) -> Runner:
    settings: dict[str, Any] = {"chunksize": 1000, "schema": BaseSchema, "metadata_cache": {}, "savemetrics": True}
    return Runner(executor=executor(status=False, **NO_RETRIES, desc=f"token={OPTIONS}"), **settings | options)


def print_everything(measurement: Measurement, saved: Path) -> None:
    """Print all that can be printed of a measurement."""
    measurement.print_summary()
    print(measurement, measurement.error, measurement.problems, measurement._repr_html_())
    print({**measurement.metrics}, {**measurement.metrics.missing}, measurement.run)
    for name, frame in measurement.tables.items():
        print(name, frame.to_csv(), frame.attrs)
    print(measurement.missing_fileset(), measurement.missing_items())
    assert main(["show", str(saved)]) == 0
    assert main(["list", str(saved.parent)]) == 0
    assert main(["compare", str(saved), str(saved)]) in {0, 1}


def check_what_is_left(measurement: Measurement, server: CountingServer) -> None:
    """What was there to be replaced was recorded, and the rest of it stays."""
    good = server.url(f"f.root?authz={MASK}&n=1")
    refused = server.url(f"{REFUSED}?X-Amz-Signature={MASK}&n=1")
    unknown = f"root://{MASK}@{server.server_name}:1//store/g.root"
    assert set(measurement.run.asked["file"].to_pylist()) == {good, refused, unknown}
    assert set(measurement.chunks["file"]) == {good}
    assert set(measurement.chunks["dataset"]) == {f"qcd?token={MASK}"}
    assert any("left open: http://weights.example.org" in problem for problem in measurement.problems)
    assert set(measurement.preprocessing["file"]) == {good, refused, unknown}
    assert f"weights of http://weights.example.org/w.json?sig={MASK}&t={MASK}" in set(measurement.sections["name"])
    errors = " ".join(measurement.failed["error"].dropna())
    assert f"login failed: password={MASK}" in errors
    assert f"{{'headers': {{'Authorization': '{MASK}'}}}}" in errors
    assert refused in errors
    assert set(measurement.failed_files["file"]) >= {refused, unknown}
    assert f"127.0.0.1:{server.server_address[1]}" in set(measurement.byte_ledger.by("endpoint").index)


@pytest.mark.slow
def test_no_planted_secret_is_written_or_printed_of_a_run_on_dask(
    client: Client,
    server: CountingServer,
    planted: Planted,
    own_patterns: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner_with = partial(runner_for, client, 1000, retries=0, schema=BaseSchema)
    folder = tmp_path / "written"
    collecting = MetricsCollector(client, journal=folder / "journals")
    with TaskMonitor(client, worker_view=True) as monitor, collecting as collector:
        assert run(runner_with, planted) == {"events": 2000}
        with dask.annotate(token=USERS_ERROR, of=f"root://u:{ROOT_URL}@h//f"):
            failing = client.submit(careless, TICKET, pure=False)
        assert USERS_ERROR in str(failing.exception())
        del failing
    collector.set_coffea_report(
        {"url": f"root://u:{REPORT}@h//f", "token": REPORT, "of": OSError(f"password={REPORT}")}
    )
    measurement = collector.measurement
    texts = list(contents(folder))
    assert any(MASK.encode() in text for place, text in texts if place.endswith(f"{ENDING} (decoded)"))
    saved = write_everything(measurement, folder)
    print_everything(roastcoffea.load(saved), saved)
    print(collector.problems, collector._repr_html_())
    assert collector.coffea_report["token"] == MASK
    print(monitor.to_dataframe().to_csv(), monitor.attempts.to_csv(), monitor.get_all_tasks(), monitor.worker_tasks)
    assert any(f"password={MASK}" in str(view["traceback"]) for view in monitor.worker_tasks)
    print(monitor.problems, monitor.joined(measurement).to_csv(), monitor.snapshots)
    printed = "".join(capsys.readouterr())
    assert f"password={MASK}" in printed
    texts += [*contents(folder), ("what is printed", printed.encode())]
    assert len(texts) > 50
    assert found_in(texts, [*SECRETS, TICKET]) == []
    check_what_is_left(measurement, server)


@pytest.mark.slow
def test_no_planted_secret_is_written_or_printed_of_a_run_on_this_machine(
    server: CountingServer,
    planted: Planted,
    own_patterns: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "written"
    with MetricsCollector(journal=folder / "journals") as collector:
        assert run(partial(local_runner, FuturesExecutor), planted) == {"events": 2000}
    journal = list(contents(folder))
    assert any(MASK.encode() in text for _, text in journal)
    capsys.readouterr()  # coffea prints the user's exception itself
    print_everything(collector.measurement, write_everything(collector.measurement, folder))
    printed = "".join(capsys.readouterr())
    texts = [*journal, *contents(folder), ("what is printed", printed.encode())]
    assert found_in(texts, [*SECRETS, TICKET]) == []
    check_what_is_left(collector.measurement, server)


@pytest.mark.slow
def test_no_planted_secret_is_written_or_printed_by_what_records_a_script(
    planted: Planted, own_patterns: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record(tmp_path) as recorder:
        run(partial(local_runner, IterativeExecutor), planted)
    printed = "".join(line for line in capsys.readouterr().err.splitlines() if line.startswith("roastcoffea:"))
    assert found_in([*contents(tmp_path), ("what is printed", printed.encode())], [*SECRETS, TICKET]) == []
    assert len(recorder.saved) == 2
    for path in recorder.saved:
        loaded = roastcoffea.load(path).run
        assert MASK in str([getattr(loaded, each.name) for each in fields(loaded)])


def test_planted_secrets_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(f'"{ROOT_URL}"')
    (tmp_path / "packed.gz").write_bytes(gzip.compress(ROOT_URL.encode()))
    (tmp_path / "page.html").write_bytes(b'<p id="x">' + base64.b64encode(gzip.compress(20 * ROOT_URL.encode())))
    pq.write_table(pa.table({"file": [ROOT_URL]}), tmp_path / "table.parquet", compression="zstd")
    places = {place.removesuffix(" (decoded)") for place, _ in found_in(contents(tmp_path), SECRETS)}
    assert places == {str(path) for path in tmp_path.iterdir()}


@needs_kinds_of_skips
def test_what_is_missing_comes_back_with_the_users_own_names(server: CountingServer, planted: Planted) -> None:
    good, refused, unknown = planted.fileset[NAME]["files"]
    fileset = planted.fileset | {"listed": [unknown], "as lists": {"files": [unknown], "metadata": {}}}
    with MetricsCollector() as collector, pytest.raises(Exception, match="login"):
        local_runner(IterativeExecutor, skipbadfiles=(ClientError, ImportError, OSError))(
            fileset, processor_instance=Indiscreet("", "login"), uproot_options=planted.options, treename="Events"
        )
    measurement = collector.measurement
    assert measurement.missing_fileset(fileset) == fileset
    recorded = measurement.missing_fileset()[f"qcd?token={MASK}"]
    assert set(recorded["files"]) == {redacted(file) for file in (good, refused, unknown)}
    items = measurement.missing_items(fileset)
    assert [(item.dataset, item.filename, item.usermeta) for item in items] == [(NAME, good, {"year": 2026})] * 2
    again = local_runner(IterativeExecutor, skipbadfiles=(Exception,))
    output, _ = again(items, processor_instance=Indiscreet(""), uproot_options=planted.options, treename="Events")
    assert output == {"events": 2000}
    assert {item.filename for item in measurement.missing_items()} == {redacted(good)}


def test_the_fingerprint_of_a_fileset_is_that_of_its_files(server: CountingServer) -> None:
    found = []
    for token in ("abc", "def"):
        with MetricsCollector() as collector:
            fileset = {"qcd": {"files": {server.url(f"f.root?token={token}"): "Events"}}}
            local_runner(IterativeExecutor)(fileset, processor_instance=Indiscreet(""))
        found.append(collector.measurement.run.calls[0].fileset)
    assert found[0] == found[1] is not None


def test_what_the_cluster_tells_is_without_secrets_before_it_is_cut() -> None:
    plugin = started_plugin(Scheduler(1))
    (worker,) = plugin.scheduler.workers.values()
    for before in range(LONGEST_TEXT - 40, LONGEST_TEXT):
        text = f"{'x' * before} root://jane:{USERS_ERROR}@host//f"
        plugin.scheduler.run(plugin, Task(f"key-{before}", worker, outcome=ERROR, error=text, client=CLIENT))
        plugin.log_event(PLUGIN, {"token": TOKEN, "problem": text})
    entries = plugin.drain(10**9, 0)["data"]
    assert entries.count(b"xxx root://***@host") > 40
    assert USERS_ERROR[:4].encode() not in entries


def test_what_the_client_is_told_knows_the_users_patterns(no_patterns: None) -> None:
    plugin = started_plugin(Scheduler(1))
    (worker,) = plugin.scheduler.workers.values()
    plugin.scheduler.run(plugin, Task("key-1", worker, outcome=ERROR, error=TICKET, client=CLIENT))
    entries = plugin.drain(10**9, 0)["data"]
    assert TICKET.encode() in entries
    add_pattern("ticket", r"TGT-\w+")
    log = ClusterLog()
    log.feed(entries)
    assert log.attempts.table(0.0)["error"].to_pylist() == [MASK]


def test_notes_and_reasons_are_without_secrets(own_patterns: None) -> None:
    with MetricsCollector() as collector:
        active[-1].chunks_lost(f"no way to root://u:{ROOT_URL}@h with {TICKET}")
        active[-1].note(f"token={OPTIONS} {TICKET}")
        item = SimpleNamespace(dataset=NAME, filename=f"{NAME}/f.root", treename=f"Events?token={OPTIONS}")
        active[-1].items_requested("call", [item])
    run = collector.measurement.run
    assert f"no way to root://{MASK}@h with {MASK}" in run.problems
    assert run.absent["chunks"] == f"no way to root://{MASK}@h with {MASK}"
    assert run.asked is not None
    assert (
        found_in([("run", f"{run!r} {run.asked.to_pydict()} {collector.problems}".encode())], [*SECRETS, TICKET]) == []
    )


def test_a_monitor_has_no_secrets_in_its_problems(
    client: Client, own_patterns: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "notes", lambda _: [f"cannot reach {TICKET}"])
    with TaskMonitor(client) as monitor:
        pass
    assert monitor.problems == [f"cannot reach {MASK}"]


def test_a_view_of_a_task_has_no_secrets_in_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "READERS", {})
    metadata = {"token": OPTIONS, "url": f"root://u:{ROOT_URL}@h//f"}
    task = SimpleNamespace(key="a", metadata=metadata, startstops=[])
    worker = SimpleNamespace(state=SimpleNamespace(threads={}), scheduler_delay=0.0)
    found = views.view_of(worker, task, "monitor")
    assert found["metadata"] == {"token": MASK, "url": f"root://{MASK}@h//f"}


def test_a_probe_takes_the_patterns_of_where_it_is_made(own_patterns: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")  # a local cluster of Dask silences the handlers
    packed = pickle.dumps(Probe(len, "Jets", "call"))
    remove_pattern("ticket")
    probe = pickle.loads(packed)
    probe.complain(f"no {TICKET} of password={OPTIONS}")
    assert caplog.messages == [f"no {MASK} of password={MASK}"]


def test_preprocessing_tells_its_problems_without_secrets() -> None:
    opening = _Opening(DaskTask(), (("ticket", r"TGT-\w+"),))
    opening.meter.miss("bytes", f"{TICKET} of password={OPTIONS}")
    assert opening.end(None)["problems"] == [f"bytes could not be metered: {MASK} of password={MASK}"]


def test_coffeas_own_report_is_without_secrets() -> None:
    metrics = {"bytesread": 3, "files": {f"root://u:{ROOT_URL}@h//f": 1}}
    assert coffea_report({"metrics": metrics}) == {"bytesread": 3, "files": {f"root://{MASK}@h//f": 1}}
    assert ROOT_URL in str(metrics)


def test_files_that_differ_only_in_a_secret_are_told(server: CountingServer) -> None:
    files = {server.url(f"f.root?token={token}"): "Events" for token in ("abc", "def")}
    with MetricsCollector() as collector:
        local_runner(IterativeExecutor)({"qcd": {"files": files}}, processor_instance=Indiscreet(""))
    assert any("as one" in problem for problem in collector.measurement.problems)
    with pytest.raises(MeasurementError, match="it is unknown which of them is missing"):
        collector.measurement.missing_items({"qcd": {"files": files}})
