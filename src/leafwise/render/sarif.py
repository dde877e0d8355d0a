"""Findings as SARIF 2.1.0, the format in which code hosts take the results of linters."""

from collections.abc import Mapping
from typing import Any

from leafwise.core.path import escape, without_secrets
from leafwise.inspect.check.findings import Finding, Findings
from leafwise.inspect.check.rules.registry import all_rules

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_of(findings: Mapping[str, Findings], version: str) -> dict[str, Any]:
    """A log with the findings in each file, by the name of the file. Files that could not be read are notifications."""
    codes = sorted({code for of_file in findings.values() for code in of_file.rules})
    rules = [all_rules()[code] for code in codes]
    described = [{"id": rule.code, "name": rule.name, "shortDescription": {"text": rule.about}} for rule in rules]
    errors: Mapping[str, Any] = getattr(findings, "errors", {})
    notifications = [
        {"level": "error", "message": {"text": escape(without_secrets(str(error)))}, "locations": [_file(name)]}
        for name, error in errors.items()
    ]
    run = {
        "tool": {"driver": {"name": "leafwise", "version": version, "rules": described}},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": notifications}],
        "results": [_result(name, finding) for name, of_file in findings.items() for finding in of_file],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(name: str, finding: Finding) -> dict[str, Any]:
    location = _file(name)
    if finding.path:
        location["logicalLocations"] = [{"fullyQualifiedName": escape(finding.path), "kind": "member"}]
    return {
        "ruleId": finding.code,
        "level": finding.level,
        "message": {"text": escape(finding.message)},
        "locations": [location],
    }


def _file(name: str) -> dict[str, Any]:
    from urllib.parse import quote

    return {"physicalLocation": {"artifactLocation": {"uri": quote(without_secrets(name), safe="/:@?=&")}}}
