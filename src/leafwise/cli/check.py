"""`leafwise check`: what is wrong with the parameters of a model or a file."""

import argparse
from typing import TYPE_CHECKING, Any

from leafwise.cli import target
from leafwise.cli.output import print_json, say, show

if TYPE_CHECKING:
    from leafwise.inspect.check.rules.registry import CheckRule


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        help="look for what is wrong: NaN, dead units, wrong scales, lost ties, and so on",
        description="Runs every rule over the parameters and prints findings, the worst first. The exit status is 1 "
        "where there is an error or a warning, 2 where something could not be read, and 0 otherwise.",
        epilog="example: leafwise check model.safetensors --against before.safetensors --ignore LW5",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target.HELP)
    parser.add_argument("--against", metavar="TARGET", help="the same model before training: find what did not change")
    target.add_where(parser)
    codes = "codes of rules, or fronts of codes such as LW3, with commas between them"
    parser.add_argument("--select", metavar="CODES", help=f"only these rules: {codes}")
    parser.add_argument("--ignore", metavar="CODES", help="not these rules")
    levels = ("error", "warning", "note")
    parser.add_argument("--fail", choices=levels, default="warning", help="the least level for an exit status of 1")
    parser.add_argument("--full", action="store_true", help="a line for every finding, however many there are")
    parser.add_argument("--rules", action="store_true", help="list the rules, and check nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, trouble=2)


def print_rules(rules: "list[CheckRule]", as_json: bool) -> None:
    if not as_json:
        for rule in rules:
            say(f"{rule.code}  {rule.name}: {rule.about}")
        return
    facts = [{"code": rule.code, "name": rule.name, "about": rule.about, "asked": rule.opt_in} for rule in rules]
    print_json({"rules": facts})


def run(options: argparse.Namespace) -> int:
    from leafwise.errors import QueryError
    from leafwise.inspect.check.findings import LEVELS
    from leafwise.inspect.check.linter import check
    from leafwise.inspect.check.rules.registry import all_rules, selected_rules

    if options.rules:
        limited = options.select or options.ignore
        rules = selected_rules(options.select, options.ignore) if limited else all_rules().values()
        print_rules(list(rules), options.json)
        return 0
    if options.target is None:
        raise QueryError("leafwise check needs a TARGET, or --rules")
    findings = check(
        target.selected(options.target, options.where),
        against=None if options.against is None else target.resolve(options.against),
        select=options.select,
        ignore=options.ignore,
        progress=True,
    )
    show(findings, options.json, **({} if options.json else {"full": options.full}))
    failing = LEVELS[: LEVELS.index(options.fail) + 1]
    return int(any(finding.level in failing for finding in findings))
