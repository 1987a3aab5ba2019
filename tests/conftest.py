from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from browser import Browser, installed_browser
from processes import CommandLineCluster, wait_until

if TYPE_CHECKING:
    from distributed import Client

# where it is installed, XRootD's client tries for minutes to connect to servers that do not exist
os.environ.update(XRD_CONNECTIONRETRY="1", XRD_CONNECTIONWINDOW="1")

# a shell lets its background jobs ignore what tests send, and so do their children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_FILES = {
    "ttbar": "nanoAOD_2015_CMS_Open_Data_ttbar.root",
    "dy": "nano_dy.root",
    "dimuon": "nano_dimuon.root",
}


PRELOADED = ["distributed", "coffea.processor", "coffea.nanoevents", "pytest", "roastcoffea.collector"]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run all tests in two processes, or four where many wait; single files, and what is debugged, in one.

    This is no option in pyproject.toml, as `-p no:xdist` could not be given there.
    """
    keep_compiled_modules(config)
    options = config.option
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not hasattr(config, "workerinput")
    if whole and getattr(options, "numprocesses", 0) is None and not options.usepdb:
        options.numprocesses, options.dist = 2 if "not cluster" in options.markexpr else 4, "worksteal"


def keep_compiled_modules(config: pytest.Config) -> None:
    """Where Python is told not to write them beside the sources: in pytest's cache, for all processes of the tests.

    To compile the package and the tests takes each process some seconds.
    """
    if sys.dont_write_bytecode and hasattr(config, "cache"):
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(config.cache.mkdir("compiled"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import what nearly all tests use, but not where others run them.

    Workers come from a process that imported coffea and this package once, which saves some seconds of each. Those of
    clusters that are started by a command, and of scripts, begin as a user's do.
    """
    if getattr(session.config.option, "numprocesses", None):
        return
    gc.disable()
    import dask
    from coffea.nanoevents import NanoAODSchema
    from distributed.utils import get_mp_context

    NanoAODSchema.warn_missing_crossrefs = False
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(PRELOADED)


STARTING = frozenset(
    {
        *("Runner", "LocalCluster", "CommandLineCluster", "Nanny"),
        *("subprocess", "Popen", "Process", "ProcessPoolExecutor", "fork", "Browser"),
    }
)
"""Names of what starts a cluster, a process or an analysis."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start clusters, processes or analyses, by the names that they, or what they call here, use."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            drawn = getattr(getattr(item.obj, "hypothesis", None), "inner_test", None)
            used = [item.obj, drawn, *(item.callspec.params.values() if hasattr(item, "callspec") else ())]
            used += [fixtures[-1].func for fixtures in item._fixtureinfo.name2fixturedefs.values()]
            if any(isinstance(one, CODE) and starts_something(one) for one in used):
                item.add_marker("cluster")


CODE = (type, FunctionType, MethodType, staticmethod, classmethod)


@cache
def starts_something(code: Any) -> bool:
    """Whether a function or class of ours, or one of ours that it uses, has such a name."""
    left, seen = [code], set[Any]()
    while left:
        found = left.pop()
        found = found.__func__ if isinstance(found, staticmethod | classmethod | MethodType) else found
        found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
        if not isinstance(found, type | FunctionType) or found in seen or not is_ours(found.__module__):
            continue
        seen.add(found)
        if isinstance(found, type):
            left += vars(found).values()
            continue
        names = names_in(found.__code__)
        if names & STARTING:
            return True
        known = [found.__globals__.get(name) for name in names]
        left += known
        left += [vars(module).get(name) for module in known if isinstance(module, ModuleType) for name in names]
    return False


@cache
def is_ours(module: str) -> bool:
    return Path(__file__).parent in Path(getattr(sys.modules.get(module), "__file__", None) or "/").parents


@cache
def names_in(code: CodeType) -> frozenset[str]:
    """Names that code, and the functions in it, use."""
    return frozenset(code.co_names).union(*(names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test comes with the end of the logs of the clusters that it may have used."""
    report = yield
    if report.failed:
        report.sections += [("logs of a cluster", cluster.text()[-8_000:]) for cluster in CommandLineCluster.running]
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Let garbage collection pass over what stays until the end: libraries, and thousands of tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def packages_without_ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every installed package but ours; PYTHONPYCACHEPREFIX="" lets it share their compiled modules."""
    folder = tmp_path_factory.mktemp("packages")
    for packages in (Path(folder) for folder in sys.path if Path(folder).name == "site-packages"):
        for entry in packages.iterdir():
            if "roastcoffea" not in entry.name and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Journals of tests, and of what they start, are in a folder of their own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def real_files() -> dict[str, dict[str, dict[str, str]]]:
    folder = os.environ.get("ROASTCOFFEA_TEST_DATA")
    if not folder:
        pytest.skip("ROASTCOFFEA_TEST_DATA is not set")
    return {name: {"files": {str(Path(folder, file).resolve()): "Events"}} for name, file in REAL_FILES.items()}


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two datasets of two files with 4000 events each."""
    from roastcoffea.cli.sample import write_sample

    return write_sample(tmp_path_factory.mktemp("sample"), files=2, events=4000, baskets=4)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = installed_browser()
    if program is None:
        pytest.skip("there is no Chromium to look at pages with")
    with Browser(tmp_path_factory.mktemp("browser"), program) as started:
        yield started


CALM = {
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.worker.profile.enabled": False,
}
"""Settings of Dask with which two idle workers take 2 % of a core instead of 9: clusters are idle most of the time."""


@contextmanager
def two_workers() -> Iterator[Client]:
    """A client of two processes with one thread each, for many tests."""
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(CALM):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
    with cluster, Client(cluster) as client:
        client.run(gc.freeze)
        yield client


@pytest.fixture(scope="session")
def shared_client() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def client(shared_client: Client) -> Iterator[Client]:
    """A client of two workers with one thread each; nothing of ours may stay on the cluster."""
    yield shared_client
    assert wait_until(lambda: what_stays(shared_client) == []), what_stays(shared_client)


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """What tests write need not survive a loss of power; waiting for a busy disk takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def _coffea_knows_no_file() -> None:
    """Empty the cache of files that Runners share unless they are given one: each test opens its files itself."""
    executor = sys.modules.get("coffea.processor.executor")
    if executor is not None:
        executor.DEFAULT_METADATA_CACHE.clear()


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    """Close what a test drew with pyplot: it warns of the twenty-first figure, in whatever test that is."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


@pytest.fixture
def no_patterns() -> Iterator[None]:
    """Without patterns of secrets that somebody added; those that a test adds end with it."""
    from roastcoffea.redaction import added_patterns, remove_pattern

    for name, _ in added_patterns():
        remove_pattern(name)
    yield
    for name, _ in added_patterns():
        remove_pattern(name)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each look at it moves by a second, so that the number of pairs does not depend on the host."""
    import roastcoffea.instrument.duet
    import roastcoffea.studies.duet

    clock = SimpleNamespace(time=count(1_000.0).__next__, perf_counter=time.perf_counter, thread_time=time.thread_time)
    for module in (roastcoffea.studies.duet, roastcoffea.instrument.duet):
        monkeypatch.setattr(module, "time", clock)


class ServedPool(ProcessPoolExecutor):
    """Processes that come from one without threads, which imported coffea once: the tests' own process has threads."""

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers, mp_context=multiprocessing.get_context("forkserver"))


def what_stays(client: Client) -> list[str]:
    """Names of ours that scheduler and workers hold."""
    places = [client.run_on_scheduler(_names_on_scheduler), *client.run(_names_on_worker).values()]
    return [name for names in places for name in names]


def left_on_tasks(dask_scheduler: Any) -> list[str]:
    """What tasks on a scheduler have of ours."""
    tasks = dask_scheduler.tasks.values()
    return [
        str(name)
        for task in tasks
        for name in {**(task.metadata or {}), **(task.annotations or {})}
        if "roast" in str(name)
    ]


def _names_on_scheduler(dask_scheduler: Any) -> list[str]:
    topics = dask_scheduler._broker._topics
    places = (
        dask_scheduler.plugins,
        dask_scheduler.worker_plugins,
        dask_scheduler.handlers,
        topics,
        vars(dask_scheduler),
    )
    return [str(name) for place in places for name in place if "roastcoffea" in str(name)]


def _names_on_worker(dask_worker: Any) -> list[str]:
    import sys

    modules = [name for name in list(sys.modules) if name.startswith("_roastcoffea")]
    places = (dask_worker.plugins, dask_worker.metrics, vars(dask_worker), modules)
    return [str(name) for place in places for name in place if "roastcoffea" in str(name)]


@pytest.fixture
def command_line_cluster(tmp_path: Path) -> Iterator[Callable[..., CommandLineCluster]]:
    clusters = []

    def start(**options: Any) -> CommandLineCluster:
        folder = tmp_path / f"cluster{len(clusters)}"
        folder.mkdir()
        clusters.append(CommandLineCluster(folder, **options))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()
