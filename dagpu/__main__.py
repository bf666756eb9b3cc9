"""`python -m dagpu COMMAND`: one function for each command, which imports the command's module when it runs."""

import argparse
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # argparse has no public name for it


def _check(commands: _Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="check files with mypy and dagpu's plugin, with no configuration",
        description="Check files and folders with mypy and dagpu's plugin. The exit status is mypy's: "
        "0 nothing found, 1 something found, 2 mypy could not run.",
        epilog="Arguments after -- go to mypy unchanged: python -m dagpu check src -- --strict",
    )
    parser.add_argument("paths", nargs="*", default=["."], metavar="PATH", help="files and folders; . unless said")
    parser.add_argument("--no-config", action="store_true", help="ignore a mypy configuration that is found here")

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.commands import check

        return check(arguments.paths, passed_on, use_configuration=not arguments.no_config)

    parser.set_defaults(run=run)


def _info(commands: _Commands) -> None:
    parser = commands.add_parser(
        "info",
        help="devices, versions, what is missing and how to get it, and a self-test of each device",
        description="Say which devices there are, which versions are installed and what is missing, and test each "
        "device with a kernel. The exit status is 0 if every device that is here works, else 1.",
    )

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.commands import info

        return info()

    parser.set_defaults(run=run)


def _explain(commands: _Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="run a script, and print each plan that it makes",
        description="Run a script, unchanged, and print each plan that it makes, before it runs. The exit status is "
        "the script's.",
        epilog="Arguments after -- go to the script: python -m dagpu explain train.py -- --epochs 2",
    )
    parser.add_argument("script")

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.commands import explain

        return explain(arguments.script, passed_on)

    parser.set_defaults(run=run)


def _trace(commands: _Commands) -> None:
    parser = commands.add_parser(
        "trace",
        help="run a script, write a timeline of what ran, and compare planned with measured overlap",
        description="Run a script, unchanged, and write a timeline of its runs for ui.perfetto.dev. The exit status is "
        "the script's.",
        epilog="Arguments after -- go to the script: python -m dagpu trace train.py --out run.json -- --epochs 2",
    )
    parser.add_argument("script")
    parser.add_argument(
        "-o", "--out", default="trace.json", metavar="FILE", help="where the timeline goes; %(default)s"
    )

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.commands import trace

        return trace(arguments.script, passed_on, arguments.out)

    parser.set_defaults(run=run)


def _compile(commands: _Commands) -> None:
    from dagpu.handles.device_handles import INSTALL_NVRTC

    parser = commands.add_parser(
        "compile",
        help="compile every kernel that files declare, without a GPU",
        description="Import files, and compile every kernel and expression that they declare, with NVRTC, or with nvcc "
        "what NVRTC cannot compile; each line says which of them did. No GPU is needed. The exit status is 0 if all "
        "compile, 1 if one is refused, 2 if a file cannot be imported or there is no compiler.",
        epilog=f"{INSTALL_NVRTC} installs NVRTC.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--arch", default="sm_90", help="the architecture to compile for; %(default)s")
    parser.add_argument(
        "--nvrtc", action="store_true", help="allow no other compiler than NVRTC, which a machine without nvcc has"
    )

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.commands import compile_files

        return compile_files(arguments.files, arguments.arch, nvrtc_only=arguments.nvrtc)

    parser.set_defaults(run=run)


def _check_kernels(commands: _Commands) -> None:
    parser = commands.add_parser(
        "check-kernels",
        help="run a script with the CUDA text of each launch checked on the host, without a GPU",
        description="Run a script, unchanged, on the host. The CUDA text of each launch runs in three orders of "
        "threads and blocks, with each access checked, and its results are compared with those of the host body. Then "
        "every other kernel that the file declares is compiled for the host. The exit status is 0 if nothing was "
        "found, else 1, or the script's.",
        epilog="Arguments after -- go to the script: python -m dagpu check-kernels train.py -- --epochs 2",
    )
    parser.add_argument("script", metavar="FILE")
    parser.add_argument(
        "--tolerance", type=float, help="the largest difference allowed, as a part of the largest element of an output"
    )

    def run(arguments: argparse.Namespace, passed_on: Sequence[str]) -> int:
        from dagpu.entry.kernel_checks import check_kernels

        return check_kernels(arguments.script, passed_on, arguments.tolerance)

    parser.set_defaults(run=run)


_COMMANDS: tuple[Callable[[_Commands], None], ...] = (_info, _explain, _trace, _check, _compile, _check_kernels)


def main(arguments: Sequence[str]) -> int:
    """Run one command. Return its exit status; an invalid command line exits with 2."""
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m dagpu")
    commands: Any = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    parsed, unknown = parser.parse_known_args(given[:cut])
    if unknown:
        parser.error(f"unrecognized arguments: {shlex.join(unknown)}{_passing_on(given[0], parsed, unknown)}")
    run: Callable[[argparse.Namespace, Sequence[str]], int] = parsed.run
    return run(parsed, given[cut + 1 :])


def _passing_on(command: str, parsed: argparse.Namespace, unknown: Sequence[str]) -> str:
    """Return the sentence that says how to pass these arguments to the script or to mypy; empty for other commands."""
    if "script" in parsed:
        whose, known = "the script", [parsed.script]
    elif "paths" in parsed:
        whose, known = "mypy", parsed.paths
    else:
        return ""
    return f". Arguments of {whose} follow --: {shlex.join(['python', '-m', 'dagpu', command, *known, '--', *unknown])}"


def _main() -> int:
    """Run the command of this process. It ends quietly, as other programs of the shell do, when the reader of its
    output has gone."""
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, select.POLLOUT)
        if not any(event & select.POLLERR for _, event in output.poll(0)):
            raise  # of another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at its end
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(_main())
