"""`leafwise view`: shows a model or checkpoint in the browser."""

import argparse
import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import say
from leafwise.errors import Error


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "view",
        help="show a model or checkpoint in the browser",
        description="Opens a page that shows the tree, sizes, values, statistics and findings; of two targets, also "
        "how they differ. The page comes from a server on this machine, which ends with Ctrl-C. It only reads.",
        epilog="examples: leafwise view model.safetensors; leafwise view before.pt after.pt; "
        "leafwise view model.safetensors --export report.html",
    )
    parser.add_argument("targets", metavar="TARGET", nargs="+", help=f"{target.HELP}; two are compared")
    parser.add_argument(
        "--export", metavar="FILE.html", help="write a report as one HTML file instead of starting a server"
    )
    parser.add_argument("--port", type=_port, metavar="N", help="the first port to try (8765); 0 takes any free one")
    parser.add_argument("--no-browser", action="store_true", help="open no browser; print only the address")
    values = parser.add_mutually_exclusive_group()
    values.add_argument(
        "--measure", action="store_true", help="read all values in the background, however many there are"
    )
    values.add_argument(
        "--no-measure", action="store_true", help="read no values in the background, only those of opened leaves"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if len(options.targets) > 2:
        raise Error(f"leafwise view shows one or two targets, not {len(options.targets)}")
    measure = True if options.measure else False if options.no_measure else None
    sources = [target.resolve(name) for name in options.targets]
    if options.export is not None:
        from leafwise.web.viewing import exported

        say(exported(sources, options.targets, options.export, measure, progress=True))
        return 0
    return serve(sources, options.targets, options.port, measure, not options.no_browser)


def serve(
    sources: Sequence[Any],
    names: Sequence[str],
    port: int | None = None,
    measure: bool | None = None,
    browser: bool = False,
) -> int:
    """Shows models or checkpoints until Ctrl-C, and returns the exit status."""
    from leafwise.web.viewing import open_browser, start_view

    gc.enable()  # it was switched off for short commands
    with suppress(KeyboardInterrupt), start_view(sources, names, port, measure) as view:
        say(view.url)
        say("Ctrl-C ends the viewer.", sys.stderr)
        sys.stdout.flush()
        if browser:
            open_browser(view.url)
        view.wait()
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text}")
    return int(text)
