"""The root command: imports commands on demand, and turns every error into one line and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from slurmsched import __version__
from slurmsched.cli.commands import COMMANDS, CommandEntry
from slurmsched.cli.invocation import Invocation
from slurmsched.model import SynschedError

EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells count it."""
EXIT_STATUS: Final = {
    0: "done",
    1: "failed",
    2: "wrong usage",
    3: "blocked by the mode, a pause or missing permissions",
    EXIT_INTERRUPTED: "interrupted",
}
COMPLETION_VARIABLE: Final = "_SYNSCHED_COMPLETE"
"""Set by the completion of a shell, which asks for the words that may follow."""
COMPLETION_SECONDS: Final = 5.0
"""Nobody waits longer for a TAB."""

_NO_ARGUMENTS: Final[tuple[type[Exception], ...]] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)
"""The error with the help of a group that was called without a command; click before 8.2 prints the help itself."""

_ENTRY_BY_NAME: Final = {name: entry for section in COMMANDS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_ENTRY_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = _ENTRY_BY_NAME.get(cmd_name)
        return None if entry is None else _import_command(entry, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands that begin as typed, without importing any, or the options."""
        commands = (item for item in _ENTRY_BY_NAME.items() if item[0].startswith(incomplete))
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=entry.summary) for name, entry in commands), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _ENTRY_BY_NAME and not args[0].startswith("-"):
            near = get_close_matches(args[0], _ENTRY_BY_NAME, n=1)
            advice = f"did you mean '{near[0]}'?" if near else "'synsched --help' lists the commands"
            ctx.fail(f"there is no command '{args[0]}': {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for section, entries in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command. Unlike click's, prints an error as one line that says what to do."""
        if COMPLETION_VARIABLE in os.environ:
            signal.setitimer(signal.ITIMER_REAL, COMPLETION_SECONDS)  # the kernel ends us, even in a hanging read
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            if isinstance(error, _NO_ARGUMENTS) and error.ctx is not None:
                click.echo(error.ctx.get_help())
                sys.exit(0)
            path = error.ctx.command_path if error.ctx else "synsched"
            _exit_with(f"{path}: {_as_continuation(error.format_message())}; see '{path} --help'", error.exit_code)
        except click.ClickException as error:
            _exit_with(f"synsched: {error.format_message()}", error.exit_code)
        except SynschedError as error:
            _exit_with(f"synsched: {error}", error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(result if isinstance(result, int) else 0)


class OptionValueBash(BashComplete):
    """Completion for bash, which has taken `--order=las` apart into three words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words, typed = super().get_completion_args()
        return words[:-1] if words[-1:] == ["="] else words, typed


add_completion_class(OptionValueBash)


def _import_command(entry: CommandEntry, name: str) -> click.Command:
    if entry.decides:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported
    command = getattr(import_module(f"slurmsched.cli.{entry.module}"), name)
    if not isinstance(command, click.Command):
        raise TypeError(f"slurmsched.cli.{entry.module}.{name} is not a command")
    return command


def _exit_with(message: str, code: int) -> NoReturn:
    click.echo(" ".join(message.split()), err=True)
    sys.exit(code)


def _as_continuation(message: str) -> str:
    return (message[:1].lower() + message[1:]).rstrip(".")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file. Default: $SYNSCHED_CONF or /etc/synsched/synsched.toml.",
)
@click.version_option(__version__, "-V", "--version", prog_name="synsched", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Scheduling rounds for deep-learning jobs on a Slurm cluster.

    \b
    Example:
      synsched status            which jobs run, which wait and why
      synsched explain 1234      one job in full
      synsched run --once        one round, for cron

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 blocked by the mode, a pause or missing permissions, 130
    interrupted.
    """
    if ctx.obj is None:
        ctx.obj = Invocation(config)
