"""Groups of commands whose help says of each command all that it says of itself in a line."""

from __future__ import annotations

import click

_LINE_MAX = 1000  # as good as none: what does not fit is wrapped


class WholeHelp(click.Group):
    """A group that cuts nothing off in the list of its commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help text, each with its whole first sentence."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, each.get_short_help_str(_LINE_MAX)) for name, each in found if each is not None and not each.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
