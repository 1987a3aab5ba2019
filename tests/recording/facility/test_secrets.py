"""Secrets that are planted in names and errors: none is on the live page, in metrics, in journals or in the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from processes import wait_until
from prometheus_client import generate_latest
from stand_ins import Observed, Task

from roastcoffea.cli import main
from roastcoffea.log.journals import journals_in
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.recording.facility.display import EXPOSED
from roastcoffea.recording.facility.page import page_of

SECRET = "ghp_Plant1Plant2Plant3Plant4Plant5Plant6"
FILE = f"root://jane:{SECRET}@xrootd.example.org//store/a.root?token={SECRET}"


class Chunk(Task):
    """A task whose item names a file with a password."""

    dependencies = dependents = ()

    @property
    def run_spec(self) -> Any:
        item = type("WorkItem", (), {"__module__": "coffea.processor.executor"})()
        vars(item).update(dataset=f"qcd?token={SECRET}", filename=FILE, treename="Events", entrystart=0, entrystop=9)
        return type("Spec", (), {"args": (item,), "func": None})()


def test_no_planted_secret_is_anywhere(observed: Observed, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "journal"
    recorder = observed.recorded_in(folder)
    mark = {"collectors": ["c"], "step": "processing", "prefix": f"token={SECRET}", "call": "call-1"}
    for number, marks in enumerate((None, {ANNOTATION: mark})):
        prefix, client = f"token={SECRET}", f"Client-token={SECRET}-{number}"
        task = Chunk(f"key-{number}", observed.worker, prefix, number, marks, client=client, outcome="error")
        task.error = f"OSError: {FILE} cannot be opened"
        observed.submit(task)
        observed.pass_time(1)
        kept = {"stimulus_id": "task-erred-1", **task.told()}
        observed.observer.transition(task.key, "processing", "erred", **kept)
        observed.pass_time(1)
    EXPOSED.add(observed.observer)
    texts = [generate_latest().decode(), str(page_of(observed.observer, observed.now))]
    EXPOSED.remove(observed.observer)
    recorder.end()
    assert wait_until(lambda: len(journals_in(folder)[0]) == 3)
    outputs = ("--page", "index.html", "--csv", "runs.csv", "--parquet", "runs.parquet")
    assert main(["facility", str(folder), *(str(tmp_path / one) if "." in one else one for one in outputs)]) == 0
    texts.append(capsys.readouterr().out)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 6
    assert observed.observer.failures == recorder.failures == 0
    assert not [text for text in texts if "Plant" in text]
    assert not [path for path in files if b"Plant" in path.read_bytes()]
