"""`leafwise image`: draws one leaf."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import say, show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "image",
        help="draw a leaf as a picture: filters, matrices, embeddings",
        description="Draws the values of a leaf: a convolution as a grid of filters, an embedding by the norms of its "
        "rows, a matrix as a heat map. Blue is negative, red is positive. From a file, only that leaf is read.",
        epilog="example: leafwise image model.safetensors conv1.weight -o filters.png",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    parser.add_argument(
        "path",
        metavar="PATH",
        help="the path of a leaf, or a part of it that only one leaf has; optional if there is only one leaf",
        nargs="?",
    )
    parser.add_argument("-o", "--output", metavar="FILE.png", help="write a PNG instead of drawing in the terminal")
    parser.add_argument("--bare", action="store_true", help="leave title and scale out of the PNG")
    parser.add_argument("--limit", type=float, metavar="X", help="the value at the ends of the color scale")
    parser.add_argument("--size", type=int, metavar="N", help="at most N pixels on each side, without title and scale")
    parser.add_argument(
        "--style", metavar="STYLE", help="filters, matrix, norms or strip (default: depends on the leaf)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a description of the picture and the number in each cell"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.tree import tree
    from leafwise.inspect.image.picture import must_be_png
    from leafwise.inspect.image.plot import check_options, image

    check_options("value", options.limit, options.size, options.style, spelling="--{}")
    if options.output is not None:
        must_be_png(options.output)  # before anything is read
    model, path = tree(target.resolve(options.target)), options.path
    picture = image(
        model,
        None if path is None else target.leaf_path(model, path),
        limit=options.limit,
        size=options.size,
        style=options.style,
    )
    if options.output is not None:
        written = picture.save(options.output, bare=options.bare)
        if not options.json:
            say(f"{written}: {picture.width}×{picture.height} pixels · {picture.caption}")
    if options.json or options.output is None:
        show(picture, options.json)
    return 0
