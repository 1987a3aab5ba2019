"""The `roastcoffea` command; it imports its subcommands when they are called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import click

from roastcoffea import __version__
from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError, unknown

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Measure": ("demo", "run", "plan", "watch", "facility", "recover"),
    "Look": ("list", "show", "report", "plot", "inspect", "metrics"),
    "Study": ("compare", "duet", "history", "scaling", "storage", "what-if"),
    "Share": ("export", "share", "merge"),
}
"""Commands in the order of the help text. The function for `what-if` is called `what_if_command`."""

NAMES: Final = tuple(chain.from_iterable(GROUPS.values()))
OLDER: Final = {"redact": "share"}
"""Former command names, not shown in the help text."""


class Commands(click.Group):
    """Command group that imports each command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = OLDER.get(cmd_name, cmd_name)
        if name not in NAMES:
            if ctx.resilient_parsing:  # for shell completion
                return None
            raise click.UsageError(unknown("command", cmd_name, sorted(NAMES)), ctx)
        measuring = name in {*GROUPS["Measure"], "duet"}
        module = importlib.import_module(f"{__name__}.{'measuring' if measuring else 'reading'}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, names in GROUPS.items():
            with formatter.section(group):
                found = ((name, self.get_command(ctx, name)) for name in names)
                rows = [(name.ljust(8), command.get_short_help_str(80)) for name, command in found if command]
                formatter.write_dl(rows)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="COMMAND",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
{shell.LATEST.strip()}
Exit status: 0 success, 1 failed or not found, 2 usage error, 130 interrupted.
For `compare --fail-if`, see `roastcoffea compare --help`.""",
)
@click.version_option(__version__, prog_name="roastcoffea")
@click.pass_context
def command_line(context: click.Context) -> None:
    """Measure coffea analyses: find what limits them and what to change.

    \b
      roastcoffea run analysis.py   measures each Runner call of a script
      roastcoffea show              prints where time went and your slowest lines
      roastcoffea report --open     shows everything in a browser
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; print errors on one line to stderr.

    `roastcoffea run` executes the script outside the `try` block, so the script's exceptions are not caught.
    """
    try:
        given: int | Callable[[], None] | None = command_line.main(
            arguments, prog_name="roastcoffea", standalone_mode=False
        )
        sys.stdout.flush()
    except click.Abort:
        return shell.fail("interrupted", shell.INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "roastcoffea"
        return shell.fail(f"{error.format_message()} (see {command} --help)", error.exit_code)
    except BrokenPipeError:
        shell.leave_stdout()
        return shell.FAILED
    except (RoastcoffeaError, OSError) as error:
        return shell.fail(str(error), shell.FAILED)
    if callable(given):
        given()
        return 0
    return given or 0
