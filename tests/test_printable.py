"""Text from files and models is escaped in one place before it is shown; nothing in the package bypasses it."""

import ast
import builtins
import itertools
import re

import pytest
from tests.syntax import SOURCE, nodes_of_sources

from leafwise.core.results.outline import Doc, Line, Span
from leafwise.printable import escape, shown_file, shown_url, without_secrets
from leafwise.render.html import html
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

EVERYTHING = "".join(map(chr, range(0x110000)))
ESCAPES = {"escape", "shown_file", "quote", "repr", "ascii"}

# Exceptions that do not derive from lw.Error: they are caught inside leafwise, and their text goes into an lw.Error.
INTERNAL = {
    "BadRequestError", "BlocksError", "CutOffError", "InitializerError", "LimitError", "NotTiledError",
    "RecipeError", "_EndError", "StoppedError", "TooDeepError",
    "TruncatedPickleError", "UnexpectedArgumentsError", "UnpicklingError", "UnreadError",
}  # fmt: skip
# Methods whose text contains no text from elsewhere, or that return the text of another `__str__`.
OWN_WORDS = {
    # rendered, which escapes:
    "core/results/result.py:__str__", "core/results/result.py:__repr__", "core/results/result.py:__format__",
    "core/path.py:__str__",  # each name quoted
    "errors.py:__str__",  # escaped when it was made
    "inspect/indices.py:__str__",  # only numbers
}  # fmt: skip


Nodes = dict[str, list[ast.AST]]


@pytest.fixture(scope="module")
def sources() -> Nodes:
    return nodes_of_sources()


def called(node: ast.AST) -> str:
    """The name of the function that an expression calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def is_plain(node: ast.AST | None) -> bool:
    """Whether an expression contains no raw text from elsewhere: constants, numbers, type names and escaped text."""
    if node is None or isinstance(node, ast.Constant) or called(node) in ESCAPES | {"len", "bit_length"}:
        return True
    if isinstance(node, ast.Attribute) and (node.attr == "__name__" or ast.unparse(node).startswith("errno.")):
        return True
    if isinstance(node, ast.JoinedStr):
        return all(map(is_plain, node.values))
    if isinstance(node, ast.FormattedValue):
        return node.conversion in (ord("r"), ord("a")) or node.format_spec is not None or is_plain(node.value)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.IfExp):
        return all(map(is_plain, [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]))
    return False


def test_is_plain_distinguishes_plain_text_from_raw_names() -> None:
    def judged(code: str) -> bool:
        return is_plain(ast.parse(code, mode="eval").body)

    assert all(map(judged, ["'x'", "f'{x!r} {len(y)} {z:,}'", "escape(f'{x}')", "f'{escape(x)}'", "type(x).__name__"]))
    assert not any(map(judged, ["x", "f'{x}'", "str(x)", "'x' + x", "f'{x.name}'", "f'{x or 1}'", "', '.join(x)"]))


@pytest.mark.slow
def test_built_in_exceptions_contain_no_raw_names(sources: Nodes) -> None:
    """An `lw.Error` escapes its message itself."""
    wrong = []
    for name, nodes in sources.items():
        for node in nodes:
            kind = called(node.exc) if isinstance(node, ast.Raise) and node.exc is not None else ""
            if isinstance(getattr(builtins, kind, None), type):
                given = node.exc.args  # type: ignore[union-attr]
                wrong += [f"{name}: {ast.unparse(one)}" for one in given if not is_plain(one)]
    # Errors of these modules are caught where the header is read or written.
    inside = ("files/plain_encoding.py", "files/record.py")
    allowed = {
        "errors.py: explanation",  # a few fixed sentences
        "core/path.py: name",  # caught at once
        "files/sources/disk.py: f'this process may only have {many} open; allow more, with ulimit -n'",  # a number
        "homes/torch/training/grouping.py: f'{method}() returns {answer!r}, not a set of names'",
        "kernels/triton/cuda.py: f'a chunk is a multiple of eight blocks, and {chunk} is not'",
        "kernels/triton/cuda_comparing.py: f'a chunk is a multiple of a block, and {chunk} is not'",
        "kernels/triton/cuda_comparing.py: f'kernels do not compare {wrong[0][0]} with {wrong[0][1]}'",
    }
    assert {one for one in wrong if not one.startswith(inside)} == allowed


@pytest.mark.slow
def test_exceptions_that_are_not_lw_errors_stay_internal(sources: Nodes) -> None:
    found = set()
    for name, nodes in sources.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef) and name != "errors.py":
                bases = {getattr(base, "id", "") for base in node.bases}
                found |= {node.name for base in bases if base.endswith(("Error", "Exception", "Warning"))}
    assert found == INTERNAL


def test_printed_text_is_escaped(sources: Nodes) -> None:
    wrong = []
    for name, nodes in sources.items():
        if name in ("cli/tour.py", "cli/completion.py"):  # they print their own code, and leafwise's results
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                fine = [is_plain(one) or called(one) in ("for_stdout", "dumps") for one in node.args]
                wrong += [f"{name}:{node.lineno}"] if not all(fine) else []
            if isinstance(node, ast.Attribute) and node.attr == "write" and name != "render/progress.py":
                if isinstance(node.value, ast.Attribute) and node.value.attr in ("stdout", "stderr", "_stream"):
                    wrong.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.keyword) and node.arg == "ensure_ascii" and name.startswith(("cli/", "render/")):
                wrong.append(f"{name}: ensure_ascii")
    assert wrong == []


def test_warnings_are_escaped(sources: Nodes) -> None:
    wrong, seen = [], 0
    for name, nodes in sources.items():
        for node in nodes:
            if called(node) == "warn" and name != "errors.py":  # which passes on what it is given
                first = node.args[0]  # type: ignore[attr-defined]
                seen += 1
                wrong += [f"{name}:{node.lineno}"] if not (is_plain(first) or called(first) == "TieWarning") else []  # type: ignore[attr-defined]
    assert wrong == []
    assert seen > 4


def test_the_text_of_objects_is_escaped(sources: Nodes) -> None:
    wrong, seen = [], set()
    for name, nodes in sources.items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__", "__format__"):
                where = f"{name}:{node.name}"
                seen.add(where)
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
                known = [is_plain(one) or ast.unparse(one or node) == "UNATTRIBUTED" for one in returned]
                wrong += [where] if not all(known) and where not in OWN_WORDS else []
    assert wrong == []
    assert len(seen) > 15
    assert seen >= OWN_WORDS


def test_files_and_urls_are_named_by_one_function(sources: Nodes) -> None:
    """`{source.name!r}` would not harm a terminal, but would show a password."""
    wrong = []
    for name, nodes in sources.items():
        for node in nodes:
            if isinstance(node, ast.FormattedValue):
                said = ast.unparse(node.value)
                names_file = re.search(r"(^|[._])(url|source\.name|whole\.name)$", said)
                wrong += [f"{name}:{node.lineno}: {said}"] if names_file else []
            if called(node) == "escape" and called(node.args[0]) == "repr" and name != "render/phrases.py":  # type: ignore[attr-defined]
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}; shown_file, or !r")
    assert wrong == []


def test_no_other_file_decides_what_is_printable() -> None:
    found = {path.name for path in SOURCE.rglob("*.py") if "isprintable" in path.read_text("utf-8")}
    assert found == {"printable.py", "path.py", "text.py", "flax_msgpack.py"}


def test_every_character_is_either_shown_or_spelled_out() -> None:
    shown = escape(EVERYTHING)
    assert shown.isprintable()
    assert escape("a\u00e9\u4e2d→×") == "a\u00e9\u4e2d→×"
    assert escape("\x1b\u202e\n\U000e0041\ud800") == "\\u001b\\u202e\\n\\udb40\\udc41\\ud800"
    assert escape(shown) == shown


@pytest.mark.parametrize("terminal", [Terminal(), Terminal(ascii=True), Terminal(color=True), Terminal(width=30)])
def test_an_outline_escapes_every_unprintable_character(terminal: Terminal) -> None:
    evil = "".join(char for char in EVERYTHING[:0x3000] if not char.isprintable()) + "<b>\ud800"
    for part, wraps in itertools.product(range(4), (False, True)):
        at = [Span("")] * 4
        at[part] = Span(evil, "name")
        doc = Doc([Line(0, (at[0],), (at[1],), (at[2],))] * 2, [(at[3],)], wraps=wraps)
        shown = text(doc, terminal).replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert [line for line in shown.split("\n") if not line.isprintable()] == []
        page = html(doc)
        assert "<b>" not in page
        assert page.partition("</style>")[2].isprintable()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("model.pt", "model.pt"),
        ("C:\\model.pt?x", "C:\\model.pt?x"),
        ("https://host/a/b.pt", "https://host/a/b.pt"),
        ("https://host:8080/a@b.pt", "https://host:8080/a@b.pt"),
        ("hf://me/repo@main/model.safetensors", "hf://me/repo@main/model.safetensors"),
        ("https://me:secret@host/a", "https://***@host/a"),
        ("https://token@host", "https://***@host"),
        ("https://me:se/cr?e#t@host/a?b=c", "https://***@host/a?b=***"),
        ("https://me:se@cret@host/a", "https://***@host/a"),
        ("http://[::1]:80/a?b", "http://[::1]:80/a?***"),
        ("https://h/a?b=1&c=2;d=&e#f", "https://h/a?b=***&c=***;d=&***#***"),
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("https://h/a?b=1\nc=2", "https://h/a?b=***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert shown_file(url) == repr(shown)
    assert "secret" not in without_secrets(f"cannot read {url}: no", url)


def test_text_without_secrets_is_unchanged() -> None:
    for words in ("", "cannot read a.pt", "see https://host/page, or http://host:9/", "a@b: c://", "x ? y : z"):
        assert without_secrets(words) == words
        assert without_secrets(words, "https://host/page") == words
