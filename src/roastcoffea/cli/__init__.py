"""The command `roastcoffea`: its subcommands are imported as they are called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from roastcoffea import __version__
from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError, unknown

MODULES: Final[Mapping[str, str]] = dict.fromkeys(
    ["demo", "facility", "recover", "run", "watch"], "measuring"
) | dict.fromkeys(
    [
        "compare",
        "export",
        "history",
        "list",
        "merge",
        "metrics",
        "plot",
        "redact",
        "report",
        "scaling",
        "show",
        "what-if",
    ],
    "reading",
)
"""Commands with their modules in this package: `what-if` is `what_if_command`."""


class Commands(click.Group):
    """The commands, each imported on request."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """Names of all commands, in order."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in MODULES:
            if ctx.resilient_parsing:  # a shell asks what can follow
                return None
            raise click.UsageError(unknown("command", cmd_name, sorted(MODULES)), ctx)
        module = importlib.import_module(f"{__name__}.{MODULES[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="roastcoffea")
@click.pass_context
def command_line(context: click.Context) -> None:
    """Measure coffea analyses."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; an error is one line on stderr.

    The script of `roastcoffea run` is executed outside this function: its errors and exit status are its own.
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
        from roastcoffea.storage.folders import OVERWRITE

        return shell.fail(str(error).replace(OVERWRITE, "--overwrite"), shell.FAILED)
    if callable(given):
        given()
        return 0
    return given or 0
