"""`roastcoffea what-if`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError


class SeveralNumbers(click.Command):
    """Command whose integer options take several values at once: `--workers 1 2 4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further number, as click requires.

        A further number that names a run is that run, and so is the last one if no other word is a run.
        """
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        given: list[str] = []
        option, before, further = None, None, False
        for word in args:
            number = option is not None and word.isdecimal() and (before == option or not _names_run(word))
            further = number and before != option
            given += [str(option), word] if further else [word]
            if not number:
                option = word.partition("=")[0] if word.partition("=")[0] in several else None
            before = word
        if further:
            values, _, _ = self.make_parser(ctx).parse_args(list(given))
            if not (isinstance(values.get("runs"), Sequence) and values["runs"]):  # click has an object for "not given"
                given[-2:] = given[-1:]
        return super().parse_args(ctx, given)


def _names_run(word: str) -> bool:
    """Whether a word refers to measurements, here or in the default folder."""
    try:
        return bool(shell.paths_of([word]))
    except RoastcoffeaError:
        return False


@click.command(cls=SeveralNumbers)
@shell.runs
@click.option("--workers", multiple=True, type=click.IntRange(1, 10_000), help="Numbers of worker processes: 1 2 4.")
@click.option("--threads", multiple=True, type=click.IntRange(1, 256), help="Threads per worker.")
@click.option("--same-host", is_flag=True, help="Workers share the cores of one host; otherwise each adds cores.")
@click.option("--chunksize", multiple=True, type=click.IntRange(1), help="Events per chunk: 25000 100000.")
@shell.bounded("--storage", click.FloatRange(1), 2.0, "Speed-up of storage in its scenario.")
@shell.as_json
def command(*, runs: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Predict the wall time of RUN on other clusters and with other chunk sizes, with an error estimate.

    The first RUN is replayed. More runs of the same analysis on the same files help: repeats show the spread, runs with
    other workers check the predictions, and runs with another chunk size show the fixed cost of a chunk. A RUN may also
    be a folder (its oldest run first), a quoted pattern, or a name with repeats.

    Several numbers may follow an option. The second and later ones are runs if runs of these names exist, and so is the
    last one if no other RUN is given: --workers 1 --workers 2024 always means the number.
    """
    from roastcoffea.studies.what_if.what_if import what_if

    shell.print_study(what_if(*shell.paths_of(runs), **settings), as_json)
