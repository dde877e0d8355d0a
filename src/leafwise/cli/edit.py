"""`leafwise edit`: writes a changed copy of a checkpoint, or computes with several."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import say, show
from leafwise.cli.rename import add_rename, pair, renames
from leafwise.cli.workers import add_dask, executor_of
from leafwise.core.path import shown_url
from leafwise.errors import Error

_DESCRIPTION = """\
Writes a changed copy of a checkpoint. The steps are planned from headers and
printed; then the values are copied in chunks. Ties, plain values and metadata
are kept. OUT is replaced only when everything is written. All options use the
names in SOURCE; --rename is applied last."""

_EPILOG = """examples:
  leafwise edit run.ckpt -o model.safetensors --keep state_dict \\
      --rename '^state_dict\\.='
  leafwise edit big.safetensors -o small.safetensors --cast bfloat16 --dry-run
  leafwise edit a.safetensors b.safetensors -o mean.safetensors --average
  leafwise edit base=a.safetensors tuned=b.safetensors -o c.safetensors \\
      --formula 'base + 0.5 * (tuned - base)'
  leafwise edit llama -o merged.safetensors --lora adapter"""


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "edit",
        help="write a changed copy of a checkpoint, or compute with several",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", help="a file, a folder or a URL; for --formula, also NAME=FILE"
    )
    out = "the file or URL: .safetensors, .npz or .params"
    parser.add_argument("-o", "--output", dest="out", metavar="OUT", required=True, help=out)
    _add_selecting(parser)
    _add_changing(parser)
    _add_computing(parser)
    _add_writing(parser)
    parser.set_defaults(run=run)


def _add_selecting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to keep, and under which names")
    _add_list(group, "--keep", "QUERY", "keep only what matches: leaves and plain values; repeatable")
    _add_list(group, "--drop", "QUERY", "drop what matches: leaves and plain values; repeatable")
    add_rename(group, "SOURCE")


def _add_changing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to change it")
    _add_list(
        group,
        "--cast",
        "[QUERY=]DTYPE",
        "cast floating-point parameters and buffers, or those that match, to float32, bfloat16, …; repeatable",
    )
    group.add_argument("--saturate", action="store_true", help="clamp values that are out of range for --cast")
    _add_list(
        group, "--transpose", "QUERY[=AXES]", "transpose, or give the new order of axes, such as 3,2,0,1; repeatable"
    )
    _add_list(
        group,
        "--resize",
        "QUERY=SIZE[;axis=N][;fill=X]",
        "cut or pad axis 0, or axis N, to SIZE; X is a number (0) or mean; repeatable",
    )
    _add_list(
        group,
        "--split",
        "GLOB=A,B[;axis=N][;sizes=I,J][;heads=H]",
        "split arrays: the last entry of GLOB becomes A, B, …; repeatable",
    )
    _add_list(
        group,
        "--fuse",
        "GLOB.{A,B}=NAME[;axis=N][;heads=H]",
        "join arrays: their last entries A, B, … become NAME; repeatable",
    )
    _add_list(
        group,
        "--tie",
        "NAME=OTHER",
        "make NAME another name of OTHER, or of its transpose OTHER.T; their values must be equal; repeatable",
    )
    _add_list(group, "--untie", "QUERY", "store names that match as arrays of their own; repeatable")
    _add_list(group, "--set", "NAME=VALUE", "set a plain value; VALUE is JSON, or text; repeatable")
    _add_list(group, "--delete", "NAME", "delete plain values, by name or glob; repeatable")
    _add_list(group, "--metadata", "KEY=TEXT", "set an entry of the metadata in the header; repeatable")


def _add_computing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("computing with several checkpoints")
    ways = group.add_mutually_exclusive_group()
    ways.add_argument("--average", action="store_true", help="compute the mean of all SOURCEs")
    ways.add_argument(
        "--formula",
        metavar="TEXT",
        help="compute a sum such as 'base + 0.5 * (tuned - base)'; without names, SOURCEs are called a, b, …",
    )
    _add_list(group, "--copy", "QUERY", "take leaves that match from the first SOURCE, such as integers; repeatable")
    _add_list(group, "--lora", "FOLDER", "merge a LoRA adapter of PEFT into the weights; repeatable")
    group.add_argument(
        "--lora-factor", metavar="X", type=float, default=1.0, help="multiply the adapters by X; 1 if not given"
    )


def _add_writing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to write it")
    group.add_argument(
        "--ties", choices=["once", "copy"], default="once", help="store tied leaves once, or under each of their names"
    )
    group.add_argument("--shard-size", metavar="SIZE", help="write several files of at most SIZE, such as 5GB")
    group.add_argument(
        "--allow", choices=["objects"], action="append", default=[], help="leave out objects that cannot be written"
    )
    group.add_argument(
        "--format",
        choices=["safetensors", "dcp", "orbax"],
        help="write safetensors under a name that belongs to another format, or a distributed or Orbax checkpoint "
        "(a folder)",
    )
    group.add_argument("--dry-run", action="store_true", help="print the steps, and write nothing")
    group.add_argument("--full", action="store_true", help="print every step")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_dask(group)


def _add_list(group: Any, option: str, metavar: str, text: str) -> None:
    group.add_argument(option, metavar=metavar, action="append", default=[], help=text)


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.editing.planning import EditOptions, prepared

    formula = "average" if options.average else options.formula
    edit_options = EditOptions(
        keep=options.keep or None,
        drop=options.drop or None,
        rename=renames(options.rename) or None,
        cast=_casts(options.cast),
        saturate=options.saturate,
        transpose=dict(_transpose(text) for text in options.transpose) or None,
        resize=dict(_with_options(text, "--resize", _resize) for text in options.resize) or None,
        split=dict(_with_options(text, "--split", _split) for text in options.split) or None,
        fuse=dict(_with_options(text, "--fuse", lambda name: {"into": name}) for text in options.fuse) or None,
        tie=dict(pair(text, "--tie", "NAME=OTHER") for text in options.tie) or None,
        untie=options.untie or None,
        set={name: _plain(text) for name, text in (pair(text, "--set", "NAME=VALUE") for text in options.set)} or None,
        delete=options.delete or None,
        metadata=dict(pair(text, "--metadata", "KEY=TEXT") for text in options.metadata) or None,
        formula=formula,
        copy=options.copy or None,
        lora=dict.fromkeys(options.lora, options.lora_factor) or None,
        allow=options.allow,
        ties=options.ties,
        shard_size=options.shard_size,
        format=options.format,
    )
    from leafwise.core.work.executor_tasks import Workers

    with (
        executor_of(options, is_fleet=False) as executor,
        prepared(_sources(options.sources, formula), options.out, edit_options, executor is not None) as job,
    ):
        job.advice = "--saturate uses the nearest value that fits"
        if not options.json:
            show(job.result, False, full=options.full, outcome=options.dry_run)
        if not options.dry_run:
            job.write(progress=True, workers=None if executor is None else Workers(executor))
        if options.json:
            show(job.result, True)
        elif job.result.written:
            say(f"wrote {shown_url(job.result.path)}")
    return 0


def _sources(texts: list[str], formula: str | None) -> Any:
    """The sources: one file, a list, or a dict if they have names."""
    if formula is None:
        if len(texts) > 1:
            raise Error("several sources need --average or --formula")
        return target.file(texts[0])
    named = [text.partition("=") for text in texts]
    if all(
        equals and name.isidentifier() and not os.path.lexists(text)
        for (name, equals, _), text in zip(named, texts, strict=True)
    ):
        names = [name for name, _, _ in named]
        if len(set(names)) < len(names):
            raise Error("two sources have the same name; give each a name of its own, as in base=a.pt tuned=b.pt")
        return {name: target.file(file) for name, _, file in named}
    return [target.file(text) for text in texts]


# -- values of options ---------------------------------------------------------------------------------------


def _casts(texts: list[str]) -> Any:
    casts = {}
    for text in texts:
        query, equals, dtype = text.rpartition("=")
        casts[query if equals else "**"] = dtype
    return casts or None


def _transpose(text: str) -> tuple[str, tuple[int, ...] | None]:
    query, equals, axes = text.rpartition("=")
    return (query, tuple(_whole(axis, "--transpose") for axis in axes.split(","))) if equals else (text, None)


def _with_options(text: str, option: str, parse: Callable[[str], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Parses `QUERY=VALUE;name=value;…`."""
    first, *further = text.split(";")
    query, equals, value = first.rpartition("=")
    if not equals or not query:
        raise Error(f"{option} takes QUERY=VALUE, not {text!r}")
    parsed = parse(value)
    for part in further:
        name, setting = pair(part.strip(), option, "options such as ;axis=1")
        if name == "fill":
            parsed[name] = setting if setting == "mean" else _number(setting, option)
        elif name == "sizes":
            parsed[name] = [_whole(size, option) for size in setting.split(",")]
        else:
            parsed[name] = _whole(setting, option)
    return query, parsed


def _resize(value: str) -> dict[str, Any]:
    return {"size": _whole(value, "--resize")}


def _split(value: str) -> dict[str, Any]:
    if "," not in value:
        raise Error(f"--split takes GLOB=A,B: the names of at least two parts, not {value!r}")
    return {"into": [name.strip() for name in value.split(",")]}


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Error(f"{option} takes whole numbers, not {text!r}") from None


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Error(f"{option} takes numbers, not {text!r}") from None


def _plain(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
