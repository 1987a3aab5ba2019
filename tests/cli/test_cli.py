"""The command line: what it prints, its exit status, and errors in one line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from handmade import handmade_run

import roastcoffea
from roastcoffea.cli import command_line, main
from roastcoffea.compat.measurements import load_measurement, save_measurement
from roastcoffea.measurement import Measurement
from roastcoffea.report.reference import metric_reference
from roastcoffea.visualization.plots import PLOTS

METRICS = {"elapsed_time_seconds": 12.5, "total_events": 4000}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Folder with two measurements, one of which is damaged."""
    folder = tmp_path / "runs"
    save_measurement(METRICS, 100.0, 112.5, folder, "good [red]run")
    damaged = save_measurement(METRICS, 100.0, 112.5, folder, "damaged")
    (damaged / "run.json").write_text('{"format": "roastcoffea_run", "schema"')
    return folder


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nix"], 2, "No such command 'nix'"),
        (["--nix"], 2, "--nix"),
        (["show"], 2, "Missing argument 'PATH'"),
        (["demo", "--events", "3"], 2, "3 is not in the range"),
        (["show", "nowhere"], 1, "nowhere"),
        (["list", "nowhere"], 1, "nowhere"),
        (["show", "."], 1, "."),
        (["list", "/dev/null"], 1, "/dev/null"),
        (["export", "nowhere"], 2, "Missing option '--format'"),
        (["export", "nowhere", "--format", "xls"], 2, "'xls' is not one of"),
        (["export", "nowhere", "--format", "csv"], 1, "nowhere"),
        (["export", ".", "--format", "perfetto"], 1, "."),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    arguments: list[str],
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("roastcoffea: ")
    assert err.count("\n") == 1


def test_an_interrupt_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roastcoffea.measurement.load", interrupted)
    assert main(["show", "run"]) == 130
    assert capsys.readouterr().err.strip() == "roastcoffea: interrupted"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    named = [line.split()[0] for line in out.partition("Commands:\n")[2].splitlines()]
    assert named == [
        *(
            "compare",
            "demo",
            "export",
            "list",
            "metrics",
            "plot",
            "report",
            "run",
            "scaling",
            "show",
            "watch",
            "what-if",
        )
    ]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert roastcoffea.__version__ in capsys.readouterr().out


def test_show_prints_the_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(runs / "good [red]run")]) == 0
    out = capsys.readouterr().out
    assert "good [red]run" in out
    assert "4,000" in out
    assert "12.5 s" in out


def test_list_has_a_line_for_each_measurement(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (good,) = [line for line in lines if "good [red]run" in line]
    assert "finished" in good
    assert "12.5 s" in good
    assert len([line for line in lines if "damaged" in line and "unreadable" in line]) == 1
    assert str(runs / "damaged" / "run.json") in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"There are no measurements in {tmp_path}.\n"


def test_metrics_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--markdown"]) == 0
    assert capsys.readouterr().out == metric_reference()
    assert main(["metrics"]) == 0
    assert "core_efficiency" in capsys.readouterr().out


@pytest.fixture
def drawable(tmp_path: Path) -> Path:
    """Folder of a measurement with records."""
    return Measurement(handmade_run()).save(tmp_path / "runs", "by hand")


def test_plot_writes_files_and_names_them(
    drawable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(drawable), "byte_ledger", "plot_time_ledger"]) == 0
    folder = Path("roastcoffea-plots", "by hand")
    files = [folder / "byte_ledger.png", folder / "time_ledger.png"]
    assert capsys.readouterr().out.splitlines() == [str(file) for file in files]
    assert [file.read_bytes()[1:4] for file in files] == [b"PNG", b"PNG"]
    assert main(["plot", str(drawable), "sections", "-o", "here", "--format", "pdf"]) == 0
    assert Path("here", "sections.pdf").read_bytes().startswith(b"%PDF")
    assert main(["plot", str(drawable / "run.json"), "byte_ledger"]) == 0
    assert [path.name for path in Path("roastcoffea-plots").iterdir()] == ["by hand"]
    capsys.readouterr()


def test_a_plot_that_is_named_twice_is_drawn_once(
    drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(drawable), "sections", "plot_sections", "sections", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sections.png'}\n"


def test_plot_tells_what_cannot_be_drawn(drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = "roastcoffea: plot_stragglers has nothing to draw: 3 chunks: it takes 8 to tell a slow one\n"
    assert main(["plot", str(drawable), "stragglers", "byte_ledger", "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'byte_ledger.png'}\n"
    assert err == lacking
    assert main(["plot", str(drawable), "byte_leger", "-o", str(tmp_path)]) == 2
    assert "did you mean byte_ledger" in capsys.readouterr().err


@pytest.mark.slow
def test_plot_without_names_draws_all_that_can_be(
    drawable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(drawable), "-o", str(tmp_path / "all"), "--format", "svg"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) + len(err.splitlines()) == len(PLOTS)
    assert "plot_stragglers has nothing to draw" in err
    assert sorted(map(str, (tmp_path / "all").iterdir())) == sorted(out.splitlines())


@pytest.mark.parametrize("lines", [0, 5])
def test_a_reader_that_leaves_gets_no_traceback(lines: int) -> None:
    command = [sys.executable, "-m", "roastcoffea", "metrics", "--markdown"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "status"),
    [
        pytest.param([], 0, marks=pytest.mark.slow),
        (["--format", "json", "--fail-if", "elapsed_time_seconds > 5%"], 2),
    ],
)
def test_a_reader_that_leaves_does_not_make_a_comparison_fail(options: list[str], status: int, drawable: Path) -> None:
    command = [sys.executable, "-m", "roastcoffea", "compare", str(drawable), str(drawable), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == status


def test_a_comparison_that_crashes_is_no_run_that_got_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*given: object, **settings: object) -> None:
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr("roastcoffea.studies.compare.compare.compare", crash)
    assert main(["compare", "A", "B"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: by 0\n")


def test_the_module_is_the_command() -> None:
    def helped(*command: str) -> str:
        return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout

    script = Path(sys.executable).with_name("roastcoffea")
    assert helped(sys.executable, "-m", "roastcoffea") == helped(str(script))


@pytest.mark.parametrize("load", [load_measurement, roastcoffea.load_measurement])
def test_metrics_saved_the_old_way_come_back(load: Callable[..., tuple[dict, float, float]], runs: Path) -> None:
    metrics, t0, t1 = load(runs / "good [red]run")
    assert {name: metrics[name] for name in METRICS} == METRICS
    assert (t0, t1) == (100.0, 112.5)


def test_out_and_output_mean_the_same_in_every_command() -> None:
    context = click.Context(command_line)
    named = {
        name: set(option.opts)
        for name in command_line.list_commands(context)
        for option in command_line.get_command(context, name).params
        if {"-o", "--out", "--output"} & set(option.opts)
    }
    assert {"compare", "demo", "export", "plot", "report", "run"} <= named.keys()
    assert {name: names for name, names in named.items() if names != {"-o", "--out", "--output"}} == {}


@pytest.mark.parametrize("option", ["--out", "--output"])
def test_what_is_written_goes_where_either_says(option: str, tmp_path: Path) -> None:
    folder = Measurement(handmade_run()).save(tmp_path, "made")
    assert main(["export", str(folder), "--format", "json", option, str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "chunks.json").exists()
