"""`leafwise check`: finds problems in the parameters of a model or checkpoint."""

import argparse
from typing import TYPE_CHECKING, Any

from leafwise.cli import target
from leafwise.cli.output import print_json, say, show
from leafwise.cli.workers import PATTERN, add_dask, for_each

if TYPE_CHECKING:
    from leafwise.core.work.executor_tasks import Workers
    from leafwise.inspect.check.rules.registry import CheckRule


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        help="find problems: NaN, dead units, wrong scales, lost ties, code in pickles and more",
        description="Checks the parameters by every rule, and lists what other programs would call if they loaded the "
        "file. Prints the findings, the worst first. Exits with 1 if "
        "there is an error or a warning (see --fail-on), with 2 if something could not be read, and with 0 otherwise.",
        epilog="example: leafwise check new.safetensors --against old.safetensors --ignore LW5",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target.HELP + PATTERN)
    target.add_words(parser)
    parser.add_argument(
        "--against", metavar="TARGET", help="the same model before training: report leaves that did not change"
    )
    target.add_where(parser)
    codes = "codes such as LW101, or prefixes of codes such as LW3, separated by commas"
    parser.add_argument("--select", metavar="CODES", help=f"use only these rules: {codes}")
    parser.add_argument("--ignore", metavar="CODES", help="do not use these rules")
    levels = ("error", "warning", "note")
    parser.add_argument(
        "--fail-on", choices=levels, default="warning", help="exit with 1 from this level up (default: %(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="print every finding, however many there are")
    parser.add_argument("--rules", action="store_true", help="list the rules instead of checking")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0, which code hosts show beside the file")
    add_dask(parser)
    parser.set_defaults(run=run, trouble=2)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.work.fleet import Fleet, is_pattern
    from leafwise.errors import QueryError
    from leafwise.inspect.check.findings import LEVELS, Findings
    from leafwise.inspect.check.linter import findings_of
    from leafwise.inspect.check.rules.registry import all_rules, selected_rules

    if options.rules:
        limited = options.select or options.ignore
        rules = selected_rules(options.select, options.ignore) if limited else list(all_rules().values())
        _print_rules(rules, options.json)
        return 0
    if options.sarif and options.json:
        raise QueryError("--sarif and --json exclude each other; give one of them")
    if options.target is None:
        raise QueryError("leafwise check needs a TARGET; to list the rules, add --rules")

    def checked(name: str, workers: "Workers | None", progress: bool = False) -> Findings:
        against = None if options.against is None else target.resolve(options.against)
        with target.selected(name, options.where, options.words) as selection:
            return findings_of(
                selection, None, None, against, options.select, options.ignore, progress=progress, workers=workers
            )

    if is_pattern(options.target):
        selected_rules(options.select, options.ignore)  # raises if they are not valid
    result = for_each(options, options.target, "check", checked)
    if options.sarif:
        from leafwise import __version__
        from leafwise.render.sarif import sarif_of

        print_json(sarif_of(result if isinstance(result, Fleet) else {options.target: result}, __version__))
    else:
        show(result, options.json, full=options.full)
    if isinstance(result, Fleet) and result.errors:
        return 2
    failing = LEVELS[: LEVELS.index(options.fail_on) + 1]
    listings = result.values() if isinstance(result, Fleet) else [result]
    return int(any(finding.level in failing for findings in listings for finding in findings))


def _print_rules(rules: "list[CheckRule]", as_json: bool) -> None:
    if as_json:
        facts = [{"code": rule.code, "name": rule.name, "about": rule.about, "asked": rule.opt_in} for rule in rules]
        print_json({"rules": facts})
        return
    for rule in rules:
        say(f"{rule.code}  {rule.name}: {rule.about}")
