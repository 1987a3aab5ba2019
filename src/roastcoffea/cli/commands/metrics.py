"""`roastcoffea metrics`."""

from __future__ import annotations

import sys

import click


@click.command
@click.option("--markdown", is_flag=True, help="Print the page of the documentation.")
def command(markdown: bool) -> None:
    """Print every metric with its unit, source and meaning."""
    from roastcoffea.report.reference import metric_reference, print_reference

    if markdown:
        click.echo(metric_reference(), nl=False)
    else:
        print_reference(sys.stdout)
