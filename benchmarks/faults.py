"""Twenty-four faults: what users, processors, clusters and disks do wrong, and what a measurement makes of it.

    python benchmarks/faults.py [NUMBER...]

Each is tried on processes of their own. In all of them the output and the error must be those of a run without a
collector, nothing of ours may stay on scheduler and workers, and the measurement must say what it lacks. What was seen
is printed beside each; the exit status is 1 unless all hold.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from distributed import Client, LocalCluster

from roastcoffea import MetricsCollector
from roastcoffea.cli.sample import write_sample
from roastcoffea.errors import MeasurementError, RoastcoffeaError
from roastcoffea.log.journals import journals_in
from roastcoffea.measurement import Measurement, load
from roastcoffea.recording.importers import recovered
from roastcoffea.storage.store import list_runs

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import analyses
from analyses import runner_for
from conftest import what_stays
from processes import CommandLineCluster, wait_until

TESTS: Final = Path(__file__).parents[1] / "tests"
CLEAN: Final = 5.0
"""Seconds after which nothing of ours may be on a cluster."""

SPANS_GONE: Final = 20.0
"""Seconds after which no span of a past run may be; while its tasks are kept, it is tried again after 1, 3, 7, 15 s."""

Fault = Callable[["Bench"], str]
FAULTS: Final[list[tuple[str, Fault]]] = []


def fault(title: str) -> Callable[[Fault], Fault]:
    """A fault of this title, which gives what was seen, and raises where that is wrong."""

    def added(tried: Fault) -> Fault:
        FAULTS.append((title, tried))
        return tried

    return added


@dataclass
class Bench:
    """A cluster of processes of their own, a sample, and a folder for one fault."""

    cluster: CommandLineCluster
    client: Client
    sample: Any
    folder: Path
    outputs: dict[str, Any] = field(default_factory=dict)

    def run(
        self,
        processor: Any = None,
        client: Client | None = None,
        chunksize: int = 1000,
        sample: Any = None,
        **options: Any,
    ) -> Any:
        """Output of the analysis."""
        runner = runner_for(client or self.client, chunksize, **options)
        return runner(sample or self.sample, processor_instance=analyses.Jets() if processor is None else processor)[0]

    @property
    def plain(self) -> Any:
        """Output without a collector."""
        if "jets" not in self.outputs:
            self.outputs["jets"] = self.run()
        return self.outputs["jets"]

    @contextmanager
    def own_cluster(self, name: str = "own", **options: Any) -> Iterator[tuple[CommandLineCluster, Client]]:
        """A cluster for this fault alone."""
        (self.folder / name).mkdir()
        cluster = CommandLineCluster(self.folder / name, **{"path": python_path(), **options})
        try:
            client = Client(scheduler_file=str(cluster.file))
            client.wait_for_workers(len(cluster.workers))
            yield cluster, client
            with suppress(Exception):  # of a cluster that is gone by intention
                client.close()
        finally:
            cluster.close()


def python_path() -> str:
    """Where processes of a cluster find the tests' analyses, and this package."""
    return os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])


def check(holds: object, what: object) -> None:
    """Raise unless something holds."""
    if not holds:
        raise AssertionError(str(what))


def check_clean(client: Client) -> None:
    """Raise if something of ours stays on a cluster."""
    check(wait_until(lambda: what_stays(client) == [], CLEAN), f"on the cluster stays {what_stays(client)}")


def check_whole(measurement: Measurement, chunks: int = 16) -> None:
    """Raise unless all chunks are there, and no problem is told."""
    check(measurement.metrics["num_chunks"] == chunks, f"{measurement.metrics['num_chunks']} chunks")
    check(measurement.problems == [], measurement.problems)


# what runs


@fault("two collectors at once")
def two_at_once(bench: Bench) -> str:
    """One in the other, and one each in two threads."""
    plain = bench.plain
    with MetricsCollector(bench.client) as outer, MetricsCollector(bench.client) as inner:
        check(bench.run() == plain, "the output differs")
    for collector in (outer, inner):
        check_whole(collector.measurement)
    found: list[Any] = []

    def measured() -> None:
        with MetricsCollector(bench.client) as collector:
            found.append((bench.run(analyses.Nested()), collector))

    threads = [threading.Thread(target=measured) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output, collector in found:
        check(output == {"qcd": 16000, "zprime": 16000}, output)
        check(collector.measurement.metrics["num_chunks"] == 16, collector.measurement.problems)
    return "nested and in two threads: 16 chunks in each of four, outputs equal"


@fault("eight in a row")
def eight_in_a_row(bench: Bench) -> str:
    """One after the other; nothing adds up on the cluster."""
    plain = bench.plain
    for _ in range(8):
        with MetricsCollector(bench.client) as collector:
            check(bench.run() == plain, "the output differs")
        check_whole(collector.measurement)
    check_clean(bench.client)
    gone = wait_until(lambda: bench.client.run_on_scheduler(listed_spans) == 0, SPANS_GONE)
    check(gone, f"{bench.client.run_on_scheduler(listed_spans)} spans of ours are left")
    return "8 times 16 chunks, no span of ours is left"


def listed_spans(dask_scheduler: Any) -> int:
    """Spans of ours that Dask lists."""
    return len(dask_scheduler.extensions["spans"].spans_search_by_tag["roastcoffea"])


@fault("worker killed")
def worker_killed(bench: Bench) -> str:
    """By its own processor, once."""
    marks = bench.folder / "marks"
    marks.mkdir()
    with bench.own_cluster(options=("--nanny",)) as (_, client), MetricsCollector(client) as collector:
        output = bench.run(analyses.KillingOnce(str(marks)), client)
    check(output == {"events": 16000}, output)
    measurement = collector.measurement
    lost = measurement.failed[measurement.failed["reason"] == "worker lost"]
    check(measurement.metrics["num_chunks"] == 16 and len(lost) > 0, measurement.problems)
    return f"output whole, 16 chunks, {len(lost)} lost attempts"


@fault("processor raises")
def processor_raises(bench: Bench) -> str:
    """The same error with and without a collector; in one file, as either of two would do."""
    errors, sample = [], {"qcd": {"files": dict([next(iter(bench.sample["qcd"]["files"].items()))])}}
    for measured in (False, True):
        try:
            if measured:
                with MetricsCollector(bench.client) as collector:
                    bench.run(analyses.Raising(0), sample=sample, retries=0)
            else:
                bench.run(analyses.Raising(0), sample=sample, retries=0)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is compared)
            errors.append((type(error), str(error)))
    check(len(errors) == 2 and errors[0] == errors[1], errors)
    check(collector.measurement.outcome == "failed", collector.measurement.outcome)
    check(collector.measurement.metrics["num_failed_chunks"] > 0, "no failed attempt")
    check_clean(bench.client)
    return f"{errors[0][0].__name__} as without, outcome failed"


@fault("retries")
def retries(bench: Bench) -> str:
    """Each chunk fails once."""
    marks = bench.folder / "marks"
    marks.mkdir()
    with MetricsCollector(bench.client) as collector:
        output = bench.run(analyses.RaisingOnce(str(marks)), retries=3)
    failed = collector.measurement.metrics["num_failed_chunks"]
    check(output == {"events": 16000}, output)
    check(failed == len(list(marks.iterdir())), f"{failed} failed attempts, {len(list(marks.iterdir()))} marks")
    return f"16 chunks and {failed} failed attempts, as many as raised"


def same_output(bench: Bench, *processors: Any, **options: Any) -> str:
    """With and without a collector."""
    for processor in processors:
        plain = bench.run(processor, chunksize=4000, **options)
        with MetricsCollector(bench.client) as collector:
            measured = bench.run(processor, chunksize=4000, **options)
        check(type(measured) is type(plain) and measured == plain, f"{measured} instead of {plain}")
        check_whole(collector.measurement, 4)
    names = [getattr(processor, "__name__", type(processor).__name__) for processor in processors]
    return f"same output and 4 chunks: {', '.join(names)}"


@fault("list output")
def list_output(bench: Bench) -> str:
    """Output that is no dictionary."""
    return same_output(bench, analyses.Listing(), analyses.Numbering())


@fault("nested output with postprocess")
def nested_output(bench: Bench) -> str:
    """A postprocess that walks the output."""
    return same_output(bench, analyses.Nested())


@fault("__slots__, lambda, frozen, function processors")
def odd_processors(bench: Bench) -> str:
    """Processors that take no attributes."""
    return same_output(
        bench, analyses.Slotted(3), lambda events: {"n": len(events)}, analyses.Frozen(), analyses.count_events
    )


@fault("__getstate__")
def own_state(bench: Bench) -> str:
    """A processor that says itself how it is pickled."""
    return same_output(bench, analyses.Slotted(5))


@fault("4 threads without compression")
def four_threads(bench: Bench) -> str:
    """One worker whose chunks overlap."""
    with bench.own_cluster(workers=1, threads=4) as (_, client):
        plain = bench.run(client=client, chunksize=500, compression=None, processor_compression=None)
        with MetricsCollector(client) as collector:
            output = bench.run(client=client, chunksize=500, compression=None, processor_compression=None)
        check(output == plain, "the output differs")
        check_whole(collector.measurement, 32)
        overlaps = int(collector.measurement.chunks["overlaps"].max())
        check(0 < overlaps <= 3, f"{overlaps} chunks at the same time as another")
        check_clean(client)
    return f"same output, 32 chunks, up to {overlaps + 1} at once"


@fault("run shorter than the interval")
def short_run(bench: Bench) -> str:
    """A sample a minute."""
    with MetricsCollector(bench.client, worker_tracking_interval=60) as collector:
        bench.run()
    check_whole(collector.measurement)
    check(collector.metrics["peak_workers"] == 2, "workers are missing")
    return f"both workers, with {collector.metrics['peak_memory_bytes'] / 1e6:.0f} MB"


# what ends


@fault("client closed")
def client_closed(bench: Bench) -> str:
    """Inside of the with."""
    with Client(scheduler_file=str(bench.cluster.file)) as client, MetricsCollector(client) as collector:
        output = bench.run(client=client)
        client.close()
    check(output == bench.plain, "the output differs")
    check(len(collector.measurement.chunks) == 16, "chunks are missing")
    check(any("the client is closed" in problem for problem in collector.measurement.problems), "no problem says so")
    check_clean(bench.client)
    return "16 chunks, what is missing is said, cluster clean"


KILLED: Final = """
import os, signal, sys
import analyses
from distributed import Client
from roastcoffea import MetricsCollector
if __name__ == "__main__":
    with Client(scheduler_file=sys.argv[1]) as client, MetricsCollector(client, journal=sys.argv[2]) as collector:
        import json
        sample = json.loads(sys.argv[3])
        output, _ = analyses.runner_for(client, 1000)(sample, processor_instance=analyses.Jets())
        import time
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@fault("client SIGKILLed")
def client_killed(bench: Bench) -> str:
    """Its journal has the run."""
    place = bench.folder / "journal"
    given = [str(bench.cluster.file), str(place), json.dumps(bench.sample)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *given], env=environment, capture_output=True, text=True, check=False
    )
    check(killed.returncode == -signal.SIGKILL, killed.stderr[-500:])
    began = time.monotonic()
    check_clean(bench.client)
    seconds = time.monotonic() - began
    (journal,) = journals_in(place)[0]
    measurement = recovered(journal)
    check((measurement.outcome, measurement.metrics["num_chunks"]) == ("lost", 16), measurement.problems)
    return f"cluster clean after {seconds:.1f} s; recovered: lost, 16 chunks"


@fault("cluster closed")
def cluster_closed(bench: Bench) -> str:
    """Inside of the with, by its owner."""
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        client = Client(cluster)
        with MetricsCollector(client) as collector:
            output = bench.run(client=client)
            cluster.close()
            began = time.monotonic()
        seconds = time.monotonic() - began
        client.close()
    check(output == bench.plain, "the output differs")
    check(len(collector.measurement.chunks) == 16, "chunks are missing")
    check(collector.measurement.problems, "no problem says so")
    check(seconds < 5, f"leaving took {seconds:.1f} s")
    return f"16 chunks, what is missing is said, left in {seconds:.1f} s"


@fault("scheduler SIGKILLed")
def scheduler_killed(bench: Bench) -> str:
    """And the analysis raises: its error must come out."""
    with bench.own_cluster() as (cluster, client):
        try:
            with MetricsCollector(client) as collector:
                bench.run(client=client)
                cluster.processes[0].kill()
                cluster.processes[0].wait()
                began = time.monotonic()
                raise KeyError("mine")
        except KeyError as error:
            check(error.args == ("mine",), error)
        seconds = time.monotonic() - began
    check(len(collector.measurement.chunks) == 16, "chunks are missing")
    check(collector.measurement.outcome == "failed", collector.measurement.outcome)
    check(seconds < 5, f"leaving took {seconds:.1f} s")
    return f"the user's error, 16 chunks, left in {seconds:.1f} s"


@fault("client.restart()")
def restart(bench: Bench) -> str:
    """Between two Runner calls."""
    with bench.own_cluster(workers=1, options=("--nanny",)) as (_, client):
        with MetricsCollector(client) as collector:
            bench.run(client=client)
            client.restart()
            output = bench.run(client=client)
        check(output == bench.plain, "the output differs")
        measurement = collector.measurement
        check(len(measurement.chunks) == 32, f"{len(measurement.chunks)} chunks")
        check(len(measurement.lifetimes) == 2, f"{len(measurement.lifetimes)} lifetimes")
        check_clean(client)
    return "32 chunks of 2 lifetimes of the worker"


@fault("adaptive scaling")
def adaptive(bench: Bench) -> str:
    """From one worker to three, and back."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        with MetricsCollector(client) as collector:
            cluster.adapt(minimum=1, maximum=3, interval="100ms", wait_count=2)
            output = bench.run(analyses.Sleeping(0.5), client)
            time.sleep(2)
        check(output == {"events": 16000}, output)
        measurement = collector.measurement
        check(measurement.metrics["num_chunks"] == 16, measurement.problems)
        residual = abs(measurement.time_ledger["residual"]) / (measurement.time_ledger.total or 1.0)
        check(residual < 0.01, f"{residual:.1%} of thread time are unaccounted for")
        check_clean(client)
    return f"16 chunks on {len(measurement.lifetimes)} workers, {residual:.2%} unaccounted"


@fault("interpreter lock held at exit")
def lock_held(bench: Bench) -> str:
    """A worker that cannot answer."""
    with MetricsCollector(bench.client) as collector:
        worker = sorted(bench.client.scheduler_info()["workers"])[0]
        stuck = bench.client.submit(hold_the_lock, 10, workers=worker, pure=False)
        time.sleep(1)
        began = time.monotonic()
    seconds = time.monotonic() - began
    told = [problem for problem in collector.measurement.run.problems if "did not answer" in problem]
    check(not stuck.done(), "the task had ended")
    check(seconds < 5, f"leaving took {seconds:.1f} s")
    check(told, collector.measurement.problems)
    stuck.result()
    check_clean(bench.client)
    return f"left in {seconds:.1f} s, the silent worker is named"


def hold_the_lock(seconds: int) -> None:
    """Sleep with the interpreter lock."""
    ctypes.PyDLL(None).sleep(seconds)


# what is stored


def small(bench: Bench) -> Measurement:
    """A measurement."""
    if "measurement" not in bench.outputs:
        with MetricsCollector(bench.client) as collector:
            bench.run(chunksize=4000)
        bench.outputs["measurement"] = collector.measurement
    return bench.outputs["measurement"]  # type: ignore[no-any-return]


@fault("failed save")
def failed_save(bench: Bench) -> str:
    """What is there stays, and the measurement can be saved elsewhere."""
    measurement = small(bench)
    path = measurement.save(bench.folder, "mine")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    (bench.folder / "file").touch()
    for folder, name in ((bench.folder, "mine"), (bench.folder / "file", "x")):
        try:
            measurement.save(folder, name)
        except MeasurementError:
            continue
        raise AssertionError(f"saved in {folder}/{name}")
    check({file.name: file.read_bytes() for file in path.iterdir()} == before, "what was there has changed")
    check(load(measurement.save(bench.folder, "other")).run.id == measurement.run.id, "it was not saved")
    check(sorted(path.name for path in bench.folder.iterdir()) == ["file", "mine", "other"], "something is left")
    return "2 refusals, what was there is unchanged, nothing is left"


@fault("../ name")
def name_outside(bench: Bench) -> str:
    """A name must stay in its folder."""
    inside = bench.folder / "inside"
    inside.mkdir()
    names = ("../x", "..", "/tmp/x", "a/b", ".hidden", "", "a\nb", "x" * 300)
    for name in names:
        try:
            small(bench).save(inside, name)
        except MeasurementError:
            continue
        raise AssertionError(f"saved as {name!r}")
    check(
        [path.name for path in bench.folder.iterdir()] == ["inside"] and not list(inside.iterdir()), "something is left"
    )
    return f"{len(names)} names refused, nothing written"


@fault("two saves in a second")
def two_saves(bench: Bench) -> str:
    """Each has a folder of its own."""
    paths = {small(bench).save(bench.folder) for _ in range(5)}
    check(len(paths) == 5 and all(load(path).run.chunks is not None for path in paths), paths)
    return "5 saves, 5 folders, all load"


@fault("NaN in JSON")
def not_a_number(bench: Bench) -> str:
    """JSON has no such numbers."""
    with MetricsCollector(bench.client) as collector:
        bench.run(chunksize=4000)
    collector.set_coffea_report({"bytesread": 1, "mean": math.nan, "most": [math.inf, -math.inf]})
    path = collector.save_measurement(bench.folder)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    for file in path.glob("*.json"):
        json.loads(file.read_text(), parse_constant=refuse)
    report = load(path).run.coffea_report
    check(math.isnan(report["mean"]) and report["most"] == [math.inf, -math.inf], report)
    return "strict JSON, and the numbers come back"


@fault("corrupt or crafted folder")
def crafted(bench: Bench) -> str:
    """Whatever is done to the files: a measurement, or an error that names the file."""
    path, refused, loaded = small(bench).save(bench.folder, "whole"), 0, 0
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2], content[:-1], b"\0" * 100, b'{"format": "roastcoffea_run"}'):
            file.write_bytes(damaged)
            try:
                load(path)
                loaded += 1
            except RoastcoffeaError as error:
                check(path.name in str(error), error)
                refused += 1
        file.unlink()
        with suppress(RoastcoffeaError):
            load(path)
        file.write_bytes(content)
    check(load(path).run.id == small(bench).run.id, "it does not load as it was")
    check(refused > loaded, f"{loaded} of {loaded + refused} damaged ones loaded")
    return f"{refused} errors that name it, {loaded} loads without damage to the records"


@fault("hostile names")
def hostile_names(bench: Bench) -> str:
    """Names of datasets with markup, and with commands for terminals."""
    (good,) = list(bench.sample["qcd"]["files"])[:1]
    names = [
        "<script>alert(1)</script>",
        "a\x1b[31mb\x07",
        "$$x$$",
        "</table><b>",
        "../../x",
        "'><svg onload=alert(1)>",
    ]
    fileset = {name: {"files": {good: "Events"}} for name in names}
    with MetricsCollector(bench.client, name="<img src=x onerror=alert(1)>\x1b[2J") as collector:
        runner_for(bench.client, 4000)(fileset, processor_instance=analyses.count_events)
    measurement = collector.measurement
    out = io.StringIO()
    measurement.print_summary(out, all=True)
    page = measurement.report(bench.folder / "page.html").read_text()
    check(not re.search("[\x00-\x08\x0b-\x1f\x7f]", out.getvalue()), "the terminal gets commands")
    check(
        "<script>alert(1)" not in page and "<img src=x" not in page and "<svg onload" not in page,
        "the page has markup of names",
    )
    path = measurement.save(bench.folder / "saved")
    check(load(path).chunks["dataset"].nunique() == len(names), "datasets are missing")
    check([run.error for run in list_runs(bench.folder / "saved")] == [None], "it cannot be listed")
    return f"{len(names)} names: no markup in the page, no command in the terminal"


def main() -> None:
    """Try them, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", type=int, nargs="*", help="those to try; all by default")
    chosen = parser.parse_args().numbers or range(1, len(FAULTS) + 1)
    warnings.simplefilter("ignore")
    held = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        sample = write_sample(folder, files=2, events=4000, baskets=4)
        (folder / "cluster").mkdir()
        cluster = CommandLineCluster(folder / "cluster", workers=2, path=python_path())
        try:
            with Client(scheduler_file=str(cluster.file)) as client:
                client.wait_for_workers(2)
                bench = Bench(cluster, client, sample, folder)
                for number in chosen:
                    bench.folder = folder / str(number)
                    bench.folder.mkdir()
                    held += tried(number, bench)
        finally:
            cluster.close()
    print(f"{held} of {len(chosen)} hold")
    raise SystemExit(held < len(chosen))


def tried(number: int, bench: Bench) -> bool:
    """Whether a fault led to what it must."""
    title, do = FAULTS[number - 1]
    began = time.monotonic()
    try:
        seen, holds = do(bench), True
    except Exception as error:  # noqa: BLE001  (it is told, and counts)
        seen, holds = f"{type(error).__name__}: {error}", False
    print(f"{number:2} {'ok  ' if holds else 'FAIL'} {title} ({time.monotonic() - began:.0f} s): {seen}", flush=True)
    return holds


if __name__ == "__main__":
    main()
