"""What commands print with --json, against docs/schemas, and the commands of docs/howto/json.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click
import numpy as np
import pytest
import uproot
from distributed import Client
from handmade import empty_run, handmade_run, hostile_run, run_without_tables
from jsonschema import Draft202012Validator
from limited_runs import LIMITED, edited, profiled
from made_runs import made_run, plan
from processes import PATIENCE
from scripts_run import START, run_in

from roastcoffea.cli import NAMES, command_line, main
from roastcoffea.cli.shell import print_json
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Environment, Run
from roastcoffea.storage.store import save_run
from roastcoffea.studies.duet import result_of
from roastcoffea.studies.plan import Forecast, PlannedCluster
from roastcoffea.studies.rereading import Endpoint, Rate, Rereading
from roastcoffea.studies.stratified import Estimate

ROOT = Path(__file__).parent.parent
SCHEMAS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs" / "schemas").glob("*.json")
}
PAGE = (ROOT / "docs" / "howto" / "json.md").read_text(encoding="utf-8")
STORED = ["schema1", "schema14"]
NAMED = ["contention", "failures", "storage", "memory", "missing-data"]


def command_of(name: str) -> click.Command:
    found = command_line.get_command(click.Context(command_line), name)
    assert found is not None
    return found


WITH_JSON = [name for name in NAMES if any("--json" in option.opts for option in command_of(name).params)]


def answer(*words: str, status: int | None = None) -> str:
    """What a command prints to stdout with --json."""
    with redirect_stdout(StringIO()) as printed:
        ended = main([*words, "--json"] if words[0] != "plan" else ["plan", "--json", *words[1:]])
    assert status in (None, ended), words
    return printed.getvalue()


def on_machine(version: str, number: int, seconds: float) -> Run:
    """One of several runs of the same analysis, a day apart."""
    environment = Environment(versions={"coffea": version}, client_host="here", hosts=())
    run = made_run([plan(seconds + 0.001 * number)] * 8, 2, id=f"{number:032}", environment=environment)
    return replace(run, start=run.start + 86400 * number, stop=run.stop + 86400 * number)


def written(path: Path, events: int, branches: str) -> None:
    with uproot.recreate(path) as file:
        tree = file.mktree("Events", dict.fromkeys(branches, "float64"))
        if events:
            tree.extend({name: np.zeros(events) for name in branches})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Healthy, slow, failed, lost, empty and damaged runs, repeats before and after a change, and a fileset."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, Run] = {name: LIMITED[name.replace("-", " ")]() for name in NAMED}
    four = [plan(1.0)] * 4
    made |= {
        "healthy": edited(made_run([plan(1.0)] * 64, 4), chunks=lambda row: {"custom": '{"jets": 3, "tag": "v1"}'}),
        "failed": made_run(four, 1, id="f" * 32, outcome="failed", error="ValueError: planted"),
        "interrupted": made_run(four, 1, id="1" * 32, outcome="failed", error="KeyboardInterrupt: "),
        "lost": made_run(four, 1, id="2" * 32, outcome="lost", error="the process died"),
        "hand": handmade_run(),
        "empty": empty_run(),
        "bare": run_without_tables(),
        "reported": handmade_run(reported={"theirs": {"a": [1]}, "per_dataset": {"a": {"t": "x"}}}, reported_by="them"),
        "hostile": hostile_run(["", "a\nb", "\x1b[31m", "</script>" * 40]),
    }
    for name, run in made.items():
        save_run(run, folder, name)
    for name in STORED:
        shutil.copytree(ROOT / "tests" / "data" / name, folder / name)
    (shutil.copytree(folder / "bare", folder / "damaged") / "run.json").write_text('{"format": "roastcoffea_run", "sc')
    for number in range(6):
        seconds = (1.0 if number < 3 else 1.5) + 0.01 * (number % 3)
        run = made_run([plan(seconds)] * 20, 2, id=f"{number:032}")
        save_run(run, folder / "repeats", f"{'before' if number < 3 else 'after'}-{number % 3}")
    for number in range(14):
        run = on_machine("2025.11", number, 1.0) if number < 7 else on_machine("2026.1", number, 2.0)
        save_run(run, folder / "history", f"run-{number:02}")
    for workers in (1, 2, 4, 8):
        for repeat, seconds in enumerate((0.9, 0.95)):
            run = made_run([plan(seconds)] * 64, workers, before=6.4, id=f"{workers}{repeat}".ljust(32, "0"))
            save_run(run, folder / "scaling", f"{workers}-{repeat}")
    for name, events, branches in (("a", 10, "xy"), ("b", 20, "xyz"), ("empty", 0, "xy")):
        written(folder / f"{name}.root", events, branches)
    shutil.copy(folder / "a.root", folder / "twice.root")
    (folder / "cut.root").write_bytes((folder / "a.root").read_bytes()[:-100])
    files = {f"{folder}/{name}.root": "Events" for name in ("a", "b", "empty", "twice", "cut", "none")}
    (folder / "fileset.json").write_text(json.dumps({"data": {"files": files}, "mc": [f"{folder}/none.root"]}))
    return folder


CALLS = {
    "list": ["list .", "list failed", "list history --sort rate"],
    "show": [
        f"show {name}"
        for name in [*NAMED, "schema1", "schema14", "healthy", "failed", "hand", "empty", "bare", "hostile", "reported"]
    ],
    "compare": [
        "compare hand missing-data healthy",
        "compare repeats/before repeats/after --fail-if 'event_rate_core_khz < -10%' --fail-if 'peak_workers > 3'",
        "compare contention healthy --fail-if 'elapsed_time_seconds > 1%'",
        "compare schema1 schema14",
    ],
    "history": ["history history", "history .", "history repeats"],
    "scaling": [
        "scaling scaling/1-0 scaling/2-0 scaling/4-0 scaling/8-0 --rate '10 kHz'",
        "scaling scaling/1-0 scaling/8-0",
    ],
    "what-if": [
        "what-if storage --workers 1,4 --chunksize 1000",
        "what-if failures --same-host",
        "what-if scaling/1-0 scaling/2-0 scaling/2-1 --workers 4 --chunksize 200",
    ],
    "inspect": ["inspect fileset.json", "inspect fileset.json --keep-empty"],
}


def forecasts() -> Iterator[Forecast]:
    one = Estimate(2.0, 1.0, 3.0)
    known = Forecast(
        name="Made",
        seed=0,
        chunks=10,
        sampled=4,
        events=1000,
        cpu=one,
        startup=1.5,
        memory=one,
        request=100_000_000,
        endpoints={"root://here": one},
        output=one,
        clusters=[PlannedCluster(2, 1, one, one, 0.9, 0.1, 600.0)],
        workers=2,
        chunksize=500,
        missing={},
        measurement=None,
    )
    yield known
    missing = {"memory": "not measured"}
    yield replace(known, startup=None, memory=None, request=None, output=None, chunksize=None, missing=missing)


def planned_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of made forecasts; no script runs."""
    run = lambda planner, *_, **__: partial(planner._call, None)  # noqa: E731, SLF001
    monkeypatch.setattr("roastcoffea.recording.auto.runnable_with", run)
    for found in forecasts():
        monkeypatch.setattr("roastcoffea.studies.plan.plan", lambda *_, found=found, **__: found)
        yield answer("plan", "analysis.py", status=0)


def watched_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from roastcoffea.monitor.shown import Look

    counts = {"sum": Counter({"processing": 3, "waiting": 1})}
    looks = [
        Look(time=1.5, num_workers=0, prefixes={}, finished={}),
        Look(time=2.5, num_workers=2, prefixes=counts, finished={}),
    ]
    monkeypatch.setattr("roastcoffea.cli.shell.client_at", lambda _: nullcontext())
    monkeypatch.setattr("roastcoffea.monitor.shown.looks", lambda *_: iter(looks))
    yield from answer("watch", "tcp://127.0.0.1:1").splitlines()


def dueled_answers(_: pytest.MonkeyPatch) -> Iterator[str]:
    """Of made pairs: tests/cli/commands/test_duet.py checks what the command prints."""

    def used(cpu: float, known: bool) -> dict[str, Any]:
        return {"cpu": cpu, "wall": 2 * cpu, "bytes": 1000 if known else None, "memory": 5_000_000 if known else None}

    for number, known in ((40, True), (5, True), (4, False), (1, True)):
        pairs = [
            {
                "dataset": "data", "start": 10.0 * place, "stop": 10.0 * place + 3, "process": "host/1",
                "first": "ab"[place % 2], "a": used(1.0 + place % 3, known), "b": used(1.1 + place % 7, known),
            }
            for place in range(number)
        ]  # fmt: skip
        with redirect_stdout(StringIO()) as printed:
            print_json(result_of(["A", "B"], pairs, ["output: other values"][: number - 39], 60.0).as_dict())
        yield printed.getvalue()


def reread_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    rates = [Rate(streams, 1e6 * streams, 5_000_000, 5.0) for streams in (1, 2)]
    for endpoint in (
        Endpoint("eos:1094", 1e6, 0.7, rates, []),
        Endpoint("xcache:1094", 1e6, None, [], ["OSError: it is closed"]),
    ):
        found = Rereading([endpoint])
        monkeypatch.setattr("roastcoffea.studies.rereading.reread", lambda *_, found=found, **__: found)
        yield answer("storage", "schema14", "--yes", status=0 if endpoint.rates else 1)


MADE = {"plan": planned_answers, "watch": watched_answers, "duet": dueled_answers, "storage": reread_answers}


class Answers(NamedTuple):
    """What a command printed for several runs."""

    command: str
    documents: list[Any]

    @property
    def schema(self) -> dict[str, Any]:
        return SCHEMAS[self.command]


@pytest.fixture(scope="module", params=[*CALLS, *MADE])
def answers(request: pytest.FixtureRequest, folder: Path) -> Answers:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        texts = [answer(*split(words)) for words in CALLS[request.param]] if request.param in CALLS else []
        texts += MADE[request.param](monkeypatch) if request.param in MADE else []
    return Answers(request.param, [json.loads(text, parse_constant=pytest.fail) for text in texts])


def split(words: str) -> list[str]:
    return [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", words)]


def errors_of(schema: dict[str, Any], document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(schema).iter_errors(document)]


class Part(NamedTuple):
    """An object in a document, and the part of the schema that lists its keys."""

    title: str
    schema: Mapping[str, Any]
    value: dict[str, Any]


def parts(root: Mapping[str, Any], schema: Any, value: Any, title: str = "") -> Iterator[Part]:
    """Objects with listed keys, from the outermost to the innermost."""
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        title = schema["$ref"].removeprefix("#/$defs/")
        yield from parts(root, root["$defs"][title], value, title)
    for one in schema.get("anyOf", ()):
        if Draft202012Validator({**one, "$defs": root["$defs"]}).is_valid(value):
            yield from parts(root, one, value, title)
    if isinstance(value, list):
        for item in value:
            yield from parts(root, schema.get("items"), item, title)
    if isinstance(value, dict):
        if schema.get("additionalProperties") is False and "required" in schema:
            yield Part(title, schema, value)
        for name, item in value.items():
            yield from parts(
                root, schema.get("properties", {}).get(name, schema.get("additionalProperties")), item, title
            )


def objects_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All parts of a schema that describe an object."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects_in(part)


def test_each_command_with_json_has_a_schema() -> None:
    assert sorted(SCHEMAS) == sorted(WITH_JSON) == sorted([*CALLS, *MADE])
    for name, schema in SCHEMAS.items():
        Draft202012Validator.check_schema(schema)
        assert schema["$id"].endswith(f"/schemas/{name}.json")
        assert f"roastcoffea {name} --json" in schema["title"]
        assert f"(../schemas/{name}.json)" in PAGE
        for part in objects_in(schema):
            assert {"additionalProperties", "properties"} & part.keys(), part
            if part.get("additionalProperties") is False:
                assert set(part.get("required", ())) <= part["properties"].keys(), part


def test_answers_have_the_form_of_the_schema(answers: Answers) -> None:
    found = [errors_of(answers.schema, document) for document in answers.documents]
    assert found == [[]] * len(found)
    assert len(found) >= 2


def test_every_part_of_the_schema_occurs_and_has_teeth(answers: Answers) -> None:
    """A key that is missing, one that is not in the schema, and a value of another type are found."""
    schema, seen = answers.schema, set[str]()
    whole, defined = Draft202012Validator(schema), schema.get("$defs", {})
    for document in answers.documents:
        for title, part, value in parts(schema, schema, document):
            if title in seen:
                continue
            seen.add(title)
            valid = Draft202012Validator({**part, "$defs": defined}).is_valid
            assert valid(value)
            for name in part["required"]:
                assert not valid({key: item for key, item in value.items() if key != name}), f"{title} without {name}"
                free = part["properties"][name] is True
                assert valid(value | {name: [[]]}) is free, f"{title}: {name} is a list in a list"
            value["planted"] = 1
            assert not whole.is_valid(document), f"{title} with an unknown key"
            del value["planted"]
    fixed = {name for name, part in defined.items() if "required" in part}
    assert seen == {"", *fixed}


@pytest.mark.parametrize("answers", ["show"], indirect=True)
def test_findings_have_a_cause_a_cost_a_remedy_and_evidence(answers: Answers) -> None:
    verdicts = [document["metrics"].get("verdict", {"value": []})["value"] for document in answers.documents]
    found = [finding for verdict in verdicts for finding in verdict]
    assert {"contention", "storage", "failures", "memory", "missing data"} <= {finding["cause"] for finding in found}
    assert all(finding["rows"] for finding in found if finding["seconds"])
    assert all((ROOT / "docs" / f"{finding['page'].partition('#')[0]}.md").exists() for finding in found)
    assert any(finding["remedy"] for finding in found)
    assert any(culprit["seconds"] for finding in found for culprit in finding["culprits"])


def test_a_forecast_of_a_script_has_the_form_of_the_schema(sample: Any, tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    (tmp_path / "script.py").write_text(f"{START}\ncall(analyses.Jets())\n")
    done = run_in(tmp_path, sys.executable, "-m", "roastcoffea", "plan", "--sample", "50", "--json", "script.py")
    assert done.returncode == 0, done.stderr
    assert errors_of(SCHEMAS["plan"], json.loads(done.stdout)) == []


def test_looks_at_a_cluster_have_the_form_of_the_schema(shared_client: Client) -> None:
    shared_client.submit(abs, -1).result()
    lines = answer("watch", shared_client.scheduler.address, "--seconds", "0.3", "--interval", "0.1", status=0)
    looks = [json.loads(line) for line in lines.splitlines()]
    assert [errors_of(SCHEMAS["watch"], look) for look in looks] == [[]] * len(looks)
    assert looks[0]["workers"] == 2


# The page

LINES = [
    line
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
STACKS = (["process", "pairs"], [10, 20], "core", 3.0), (["process", "load"], [10, 12], "blocked", 1.5)


class Pyroscope(HTTPServer):
    """Stand-in for Pyroscope's /ingest that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), Ingest)


class Ingest(BaseHTTPRequestHandler):
    server: Pyroscope

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.sent.append((self.path, content.decode()))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.mark.skipif(not all(map(shutil.which, ("jq", "curl"))), reason="needs jq and curl")
def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = profiled(LIMITED["storage"](), *STACKS)
    runs = {"ttbar-001": run, "ttbar-002": replace(LIMITED["failures"](), id="2" * 32)}
    for name, each in runs.items():
        Measurement(each).save(tmp_path / "roastcoffea-runs", name)
    monkeypatch.chdir(tmp_path)
    server = Pyroscope()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    printed: dict[str, str] = {}
    try:
        for line in LINES:
            if line.startswith("roastcoffea "):
                words, _, target = line.removeprefix("roastcoffea ").partition(" > ")
                with redirect_stdout(StringIO()) as out:
                    assert main(split(words)) == 0, line
                if target:
                    Path(target).write_text(out.getvalue())
                continue
            command = line.replace("pyroscope.example.org:4040", f"127.0.0.1:{server.server_port}")
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE
            )
            assert (done.returncode, done.stderr) == (0, ""), line
            printed[line] = done.stdout
    finally:
        server.shutdown()
        server.server_close()
    jq = [text for line, text in printed.items() if line.startswith("jq ")]
    assert len(jq) >= 4
    assert all(text.strip() not in {"", "null"} for text in jq)
    found = [(finding.cause, finding.remedy or "") for finding in Measurement(run).verdict]
    assert [(words[0], words[3]) for line in jq[0].splitlines() if (words := line.split("\t"))] == found
    ((address, stacks),) = server.sent
    assert urlsplit(address).path == "/ingest"
    asked = {name: value for name, (value,) in parse_qs(urlsplit(address).query, strict_parsing=True).items()}
    assert asked["format"] == "folded"
    assert (int(asked["from"]), int(asked["until"])) == (int(run.start), int(run.stop))
    counts = [int(line.rpartition(" ")[2]) for line in stacks.splitlines()]
    seconds = sum(counts) / int(asked["sampleRate"])
    assert seconds == sum(seconds for *_, seconds in STACKS) == Measurement(run).profile.tree().seconds
