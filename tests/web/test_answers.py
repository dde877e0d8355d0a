"""What the viewer answers, against independent truths: loops over torch and safetensors, NumPy, and plain recursion."""

import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.files.writers import WRITERS, arrays

import leafwise as lw
from leafwise.render.pictures.scale import EMPTY, INFINITE, NAN, STEPS
from leafwise.web import pictures
from leafwise.web.answers import comparison, lines, map, tables, whole
from leafwise.web.answers import leaf_page as leaf
from leafwise.web.lines import SORTS, LineRequest
from leafwise.web.session import Session, why_not_measured

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120,
}  # fmt: skip
VISION = SMALL | {"image_size": 32, "patch_size": 8}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 120, "n_positions": 64},
    "LlamaForCausalLM": SMALL | {"tie_word_embeddings": True},
    "MistralForCausalLM": SMALL | {"num_key_value_heads": 2},
    "MixtralForCausalLM": SMALL | {"num_key_value_heads": 2, "num_local_experts": 4},
    "GemmaForCausalLM": SMALL | {"num_key_value_heads": 2, "head_dim": 8},
    "PhiForCausalLM": SMALL,
    "OPTForCausalLM": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "vocab_size": 120, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "GPTNeoXForCausalLM": SMALL,
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 120},
    "BertForMaskedLM": SMALL,
    "RobertaForMaskedLM": SMALL,
    "AlbertForMaskedLM": SMALL | {"embedding_size": 16},
    "DistilBertForMaskedLM": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 120},
    "ElectraForPreTraining": SMALL | {"embedding_size": 16},
    "DebertaV2ForMaskedLM": SMALL,
    "T5ForConditionalGeneration": {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 120},
    "BartForConditionalGeneration": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
                                     "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
                                     "decoder_attention_heads": 4, "vocab_size": 120},
    "WhisperForConditionalGeneration": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 120,
                                        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
                                        "decoder_attention_heads": 4, "pad_token_id": 0, "max_source_positions": 50},
    "ViTForImageClassification": VISION,
    "DeiTForImageClassification": VISION,
    "Dinov2Model": VISION,
    "ConvNextForImageClassification": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
    "ResNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "Wav2Vec2Model": SMALL | {"conv_dim": [8, 8], "conv_kernel": [5, 3], "conv_stride": [2, 2],
                              "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
                              "num_conv_pos_embedding_groups": 4},
    "MambaForCausalLM": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 120, "state_size": 8},
}  # fmt: skip


def built(name: str) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model: torch.nn.Module = cls(cls.config_class(**MODELS[name]))
    return model


def training_checkpoint(path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "note": "a run", "none": None},
        path,
    )


def sharded(path: Path) -> None:
    model: Any = built("GPT2LMHeadModel")
    model.save_pretrained(path, max_shard_size="20KB")
    assert len(list(path.glob("*.safetensors"))) > 3


FILES: dict[str, Callable[[Path], Any]] = {
    "training.pt": training_checkpoint,
    "sharded": sharded,
    **{f"written by {name}": (lambda path, write=write: write(path, arrays())) for name, write in WRITERS.items()},
}


def finished(*trees: lw.Tree, measure: bool | None = True) -> Session:
    """A session whose computations have ended."""
    session = Session(trees, [f"name {number}" for number in range(len(trees))], measure)
    while any(job.state == "running" for job in (*session.jobs.values(), session.structure)):
        time.sleep(0.005)
    for job in session.jobs.values():
        assert job.state != "failed", job.message
    return session


# Once for all tests of a model or file: they only ask, and most of their time would be spent on building it.
@pytest.fixture(scope="module", params=[*MODELS, *FILES])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    name = request.param
    if name in MODELS:
        shown = finished(lw.tree(built(name)))
        yield shown
    else:
        path = tmp_path_factory.mktemp("session") / "file"
        FILES[name](path)
        with lw.open(path) as t:
            shown = finished(t)
            yield shown
    shown.close()


def everything(session: Session, asked: LineRequest, step: int = 7) -> list[dict[str, Any]]:
    """The whole list, asked for in windows."""
    rows: list[dict[str, Any]] = []
    while True:
        answer = lines.rows(session, asked, len(rows), step)
        # Files of other tools name no layers, and the page says so.
        is_surprising = not answer["total"] and ("role:" in asked.query or "owner:" in asked.query)
        assert answer["error"] is None or (is_surprising and "which layers the leaves belong to" in answer["error"])
        rows += answer["rows"]
        assert answer["total"] >= len(rows)
        if len(rows) == answer["total"]:
            return rows
        assert answer["rows"], "a window before the end is empty"


WHOLE = LineRequest(depth=1_000)


# -- lines -----------------------------------------------------------------------------------------------


def test_the_lines_are_those_of_the_tree(session: Session) -> None:
    t = session.tree
    rows = everything(session, WHOLE, 500)
    leaves = [row for row in rows if row["kind"] == "leaf"]
    assert sorted(row["path"] for row in leaves) == sorted(str(name.path) for one in t for name in one.names)
    assert len([row for row in rows if row["kind"] == "value"]) == len(t.scalars)
    for row in leaves:
        shown = t[row["path"]]
        assert row["shape"] == list(shown.shape or ())
        assert row["dtype"] == shown.dtype
        assert row["trainable"] == shown.trainable
        counted = row["tied"] is None
        assert (row["bytes"], row["size"], row["leaves"]) == ((shown.nbytes, shown.size, 1) if counted else (0, 0, 0))
    # A node has the sums of what is below it, and ends where the next of its level begins.
    for row in rows:
        below = [other for other in leaves if row["id"] <= other["id"] < row["end"]]
        for name in ("bytes", "size", "leaves"):
            assert row[name] == sum(other[name] for other in below)
        following = [other["id"] for other in rows if other["id"] > row["id"] and other["depth"] <= row["depth"]]
        assert row["end"] == min(following, default=len(rows))
    assert rows[0]["bytes"] == t.counts.bytes
    assert rows[0]["leaves"] == t.counts.leaves
    assert whole.summary(session)["counts"] == t.counts._asdict()


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_of_a_model_are_shown_once_under_all_their_names(name: str) -> None:
    model = built(name)
    session = finished(lw.tree(model), measure=False)
    rows = {row["path"]: row for row in everything(session, WHOLE, 500) if row["kind"] == "leaf"}
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for tensor_names in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for path, value in tensor_names:
            names.setdefault(id(value), []).append(path)
            tensors[id(value)] = value
    assert sorted(rows) == sorted(path for paths in names.values() for path in paths)
    for key, paths in names.items():
        own = [path for path in paths if rows[path]["tied"] is None]
        assert len(own) == 1
        assert rows[own[0]]["bytes"] == tensors[key].numel() * tensors[key].element_size()
        assert rows[own[0]]["shared"] == (len(paths) if len(paths) > 1 else 0)
        for path in set(paths) - set(own):
            assert rows[path]["tied"] == {"to": own[0], "op": "same"}
    ties = {frozenset(one["path"] for one in tie["names"]) for tie in whole.summary(session)["ties"]}
    assert ties == {frozenset(paths) for paths in names.values() if len(paths) > 1}
    session.close()


def test_every_path_can_be_found(session: Session) -> None:
    for asked in (LineRequest(), WHOLE, LineRequest(depth=0), LineRequest(depth=2, toggled=(0,))):
        for row in everything(session, WHOLE, 500):
            found = lines.find(session, row["path"], asked)
            [shown] = lines.rows(session, asked._replace(toggled=tuple(found["toggled"])), found["index"], 1)["rows"]
            assert shown["path"] == row["path"]


def naive(session: Session, depth: int, toggled: set[int]) -> list[int]:
    """The visible lines, by recursion over lines and their depths."""
    rows = session.lines
    children: dict[int, list[int]] = {}
    above: list[int] = []
    for line in range(len(rows)):
        del above[rows.depths[line] :]
        children.setdefault(above[-1] if above else -1, []).append(line)
        above.append(line)

    def visible(line: int) -> list[int]:
        is_open = (rows.depths[line] < depth) ^ (line in toggled)
        return [line] + [one for child in children.get(line, []) if is_open for one in visible(child)]

    return [one for top in children[-1] for one in visible(top)]


def random_tree(source: random.Random, depth: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for number in range(source.randrange(1, 5)):
        if depth < 5 and source.random() < 0.5:
            made[f"n{number}"] = random_tree(source, depth + 1)
        else:
            shape = [source.randrange(0, 5) for _ in range(source.randrange(0, 3))]
            dtype = source.choice([torch.float32, torch.float16, torch.int64])
            made[f"w{number}"] = torch.ones(shape, dtype=dtype)
    return made


@pytest.mark.parametrize("seed", range(30))
def test_folding_is_that_of_a_plain_recursion(seed: int) -> None:
    source = random.Random(seed)
    session = finished(lw.tree(random_tree(source)), measure=False)
    count = len(session.lines)
    for _ in range(20):
        depth = source.randrange(0, 7)
        toggled = {source.randrange(count + 3) for _ in range(source.randrange(0, 6))}
        asked = LineRequest(depth=depth, toggled=tuple(sorted(toggled)))
        rows = everything(session, asked, source.randrange(1, 9))
        nodes = {line for line in toggled if line < count and session.lines.kinds[line] == 0}
        assert [row["id"] for row in rows] == naive(session, depth, nodes)
        for row in rows:
            assert row["open"] == (row["kind"] == "node" and ((row["depth"] < depth) ^ (row["id"] in toggled)))
        # Whatever is folded, every line can be made visible, and what was visible stays so.
        line = source.randrange(count)
        index, now = session.listing.place_of(line, asked, 0)
        shown = naive(session, depth, set(now))
        assert index is not None
        assert shown[index] == line
        assert {row["id"] for row in rows} <= set(shown)
    session.close()


def test_sorted_lists_are_those_of_sorted(session: Session) -> None:
    t = session.tree
    statistics = lw.stats(t).by_leaf()
    leaves = list(t)
    order = [row["path"] for row in everything(session, WHOLE, 500) if row["kind"] == "leaf" and row["tied"] is None]
    assert len(order) == len(leaves)

    def key(path: str, sort: str) -> Any:
        one = t[path]
        if sort in ("path", "bytes", "size", "dtype"):
            return {"path": path, "bytes": one.nbytes, "size": one.size, "dtype": one.dtype}[sort]
        row = statistics.get(one.number)
        value = None if row is None or sort == "change" else getattr(row, sort)
        return (value is not None and value == value, 0.0 if value is None or value != value else value)

    for sort in SORTS:
        for descending in (False, True):
            rows = everything(session, LineRequest(sort=sort, descending=descending), 500)
            if sort == "tree":
                continue
            assert sorted(row["path"] for row in rows) == sorted(order)
            keys = [key(row["path"], sort) for row in rows]
            assert keys == sorted(keys, reverse=descending)


QUERIES: dict[str, Callable[[lw.Tree], lw.Tree]] = {
    "weight": lambda t: t.find("weight"),
    "WEIGHT": lambda t: t.find("WEIGHT"),
    "0 weight": lambda t: t.find("0", "weight"),
    "*.bias": lambda t: t.find("*.bias"),
    "dtype:float32": lambda t: t.select(lw.where(dtype="float32")),
    "role:norm.*": lambda t: t.select(lw.where(role="norm.*")),
    "role:none": lambda t: t.select(lw.where(role=None)),
    "kind:buffer": lambda t: t.select(lw.where(kind="buffer")),
    "owner:Linear": lambda t: t.select(lw.where(owner="Linear")),
    "section:optimizer": lambda t: t.select(lw.where(section="optimizer")),
    "ndim:2": lambda t: t.select(lw.where(ndim=2)),
    "ndim:2 weight": lambda t: t.select(lw.where(ndim=2)).find("weight"),
    "tied:yes": lambda t: t.select(lw.where(tied=True)),
    "trainable:no": lambda t: t.select(lw.where(trainable=False)),
    "persistent:no": lambda t: t.select(lw.where(persistent=False)),
    "nothing_has_this_name": lambda t: t.find("nothing_has_this_name"),
}


def test_queries_find_what_the_library_finds(session: Session) -> None:
    nodes = [row for row in everything(session, WHOLE, 500) if row["kind"] == "node"]
    for query, find in QUERIES.items():
        check_query(session, query, find(session.tree), nodes)


def check_query(session: Session, query: str, found: lw.Tree, nodes: list[dict[str, Any]]) -> None:
    names = {str(path) for path, _ in found.items()}
    flat = everything(session, LineRequest(query=query, sort="path"))
    rows = everything(session, LineRequest(query=query))
    listed = {row["path"] for row in rows if row["kind"] == "leaf"}
    assert names <= listed, query
    assert {session.tree[path].number for path in listed} == {one.number for one in found}, query
    assert {session.tree[row["path"]].number for row in flat} <= {one.number for one in found}, query
    # Only lines above a match are listed, and all of them.
    kept = {row["id"] for row in rows}
    for row in nodes:
        below = any(row["id"] <= one["id"] < row["end"] for one in rows if one["kind"] != "node")
        assert (row["id"] in kept) == below, (query, row["path"])
    table = tables.table(session, query, "", False, 0, 500)
    assert {row["path"] for row in table["rows"]} <= listed, query


# -- the map ---------------------------------------------------------------------------------------------


def cells(cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield cell
    for child in cell.get("children", ()):
        yield from cells(child)


def test_the_map_contains_every_byte_once(session: Session) -> None:
    for color in ("dtype", "role", "health", "magnitude"):
        check_map(session, color)


def check_map(session: Session, color: str) -> None:
    t = session.tree
    found = map.treemap(session, "", color)
    assert found["cell"]["bytes"] == t.counts.bytes
    for cell in cells(found["cell"]):
        if cell["kind"] == "node":
            assert cell["bytes"] == sum(child["bytes"] for child in cell["children"])
            sizes = [child["bytes"] for child in cell["children"] if child["kind"] != "more"]
            assert sizes == sorted(sizes, reverse=True)
        elif cell["kind"] == "leaf":
            assert cell["bytes"] == t[cell["path"]].nbytes
        elif cell["kind"] == "alias":
            assert cell["bytes"] == 0
    leaves = [cell for cell in cells(found["cell"]) if cell["kind"] in ("leaf", "more")]
    assert sum(cell["bytes"] for cell in leaves) == t.counts.bytes
    if color in ("dtype", "role"):
        sums = {one["name"]: one["bytes"] for one in found["scale"]["values"]}
        assert sum(sums.values()) == t.counts.bytes
    if color == "dtype":
        assert sums == dict(Counter({row.name: row.bytes for row in t.by("dtype") if row.leaves}))


def test_aliases_lead_to_their_leaf(session: Session) -> None:
    t = session.tree
    found = map.treemap(session, "", "dtype")
    aliases = {cell["path"] for cell in cells(found["cell"]) if cell["kind"] == "alias"}
    assert {link["from"] for link in found["links"]} == aliases
    further = {str(name.path) for one in t for name in one.names} - {
        row["path"] for row in everything(session, WHOLE, 500) if row["kind"] == "leaf" and row["tied"] is None
    }
    assert aliases == further
    for link in found["links"]:
        assert t[link["from"]].number == t[link["to"]].number


def test_each_node_has_a_map_of_its_own(session: Session) -> None:
    for row in everything(session, WHOLE, 500):
        found = map.treemap(session, row["path"], "dtype")
        assert found["crumbs"][-1]["path"] == found["path"]
        assert found["crumbs"][0]["path"] == ""
        if row["kind"] == "node":
            assert (found["path"], found["cell"]["bytes"]) == (row["path"], row["bytes"])


def test_a_large_tree_is_pruned_to_what_can_be_seen() -> None:
    tree = {f"layer{n}": {f"w{m}": torch.ones(1 + (n * m) % 37) for m in range(50)} for n in range(200)}
    session = finished(lw.tree(tree), measure=False)
    found = map.treemap(session, "", "dtype")
    shown = list(cells(found["cell"]))
    assert len(shown) < 3_000
    assert any(cell["kind"] == "more" for cell in shown)
    assert sum(cell["bytes"] for cell in shown if cell["kind"] in ("leaf", "more")) == session.tree.counts.bytes
    assert sum(cell["leaves"] for cell in shown if cell["kind"] in ("leaf", "more")) == session.tree.counts.leaves
    session.close()


# -- a leaf ----------------------------------------------------------------------------------------------


def dense(one: lw.Leaf) -> Any:
    value = one.value
    tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    return tensor.detach().to(torch.float64).numpy()


def test_statistics_are_those_of_numpy(session: Session) -> None:
    for one in session.tree:
        answer = leaf.statistics(session, str(one.path))
        array = dense(one)
        if not one.size:
            continue
        assert answer["skipped"] is None
        numbers = {entry["name"]: entry["value"] for entry in answer["numbers"]}
        for name, expected in {
            "min": array.min(), "max": array.max(), "mean": array.mean(), "std": array.std(),
            "l2": np.sqrt((array**2).sum()), "absmax": abs(array).max(),
        }.items():  # fmt: skip
            assert numbers[name] == pytest.approx(float(expected), rel=1e-6, abs=1e-12), (str(one.path), name)
        assert answer["zeros"] == (array == 0).sum()
        counts = Counter(np.frexp(abs(array[array != 0]))[1].tolist())
        shown = {answer["lowest"] + place + 1: n for place, n in enumerate(answer["counts"]) if n}
        if not answer["subnormals"]:
            assert shown == dict(counts)


def test_the_table_is_that_of_the_library(session: Session) -> None:
    statistics = lw.stats(session.tree).by_leaf()
    table = tables.table(session, "", "", False, 0, 500)
    names = [column["name"] for column in table["columns"]]
    assert table["total"] == min(len(statistics), table["total"]) == len(statistics)
    for row in table["rows"]:
        expected = statistics[session.tree[row["path"]].number]
        for name, column, value in zip(names, table["columns"], row["numbers"], strict=True):
            number = getattr(expected, name)
            number = number / expected.finite if column["form"] == "share" and expected.finite else number
            assert value == pytest.approx(number, nan_ok=True) or value == str(number), (row["path"], name)
        assert row["dtype"] == expected.dtype
    for name in names:
        for descending in (False, True):
            ordered = tables.table(session, "", name, descending, 0, 500)
            assert sorted(row["path"] for row in ordered["rows"]) == sorted(row["path"] for row in table["rows"])
            column = [row["numbers"][names.index(name)] for row in ordered["rows"]]
            raw = [getattr(statistics[session.tree[row["path"]].number], name) for row in ordered["rows"]]
            assert raw == sorted(raw, reverse=descending), (name, column)


def test_findings_are_those_of_check(session: Session) -> None:
    expected = lw.check(session.tree)
    found = tables.findings(session, "", "", 0, 500)
    assert [(row["code"], row["level"], row["path"], row["message"]) for row in found["rows"]] == [
        (one.code, one.level, one.path, one.message) for one in expected
    ]
    for level in ("error", "warning", "note"):
        some = tables.findings(session, level, "", 0, 500)
        assert some["total"] == found["levels"][level] == sum(one.level == level for one in expected)
    for entry in found["codes"]:
        assert tables.findings(session, "", entry["code"], 0, 500)["total"] >= entry["count"]
    worst = {"error": 0, "warning": 1, "note": 2, "ok": 3}
    for row in everything(session, WHOLE, 500):
        if row["kind"] == "leaf":
            number = session.tree[row["path"]].number
            levels = [one.level for one in expected if one.path and session.leaf_number(one.path) == number]
            assert row["health"] == min(levels, key=worst.__getitem__, default="ok")


def test_neighbours_form_one_chain(session: Session) -> None:
    order = [row["path"] for row in everything(session, WHOLE, 500) if row["kind"] == "leaf"]
    found = [leaf.leaf(session, path) for path in order]
    assert [facts["previous"] for facts in found] == [None, *order[:-1]]
    assert [facts["next"] for facts in found] == [*order[1:], None]
    # A further name of a tied leaf opens the leaf.
    assert [session.tree[facts["path"]].number for facts in found] == [session.tree[path].number for path in order]


def test_norms_are_those_of_numpy(session: Session) -> None:
    for one in list(session.tree)[:12]:
        answer = leaf.norms(session, str(one.path))
        array = dense(one)
        if sum(size > 1 for size in array.shape) < 2:
            assert answer is None
            continue
        assert answer is not None
        for curve in answer["axes"]:
            candidates = [axis for axis, size in enumerate(array.shape) if size == curve["count"]]
            matching = 0
            for axis in candidates:
                norms = np.sqrt((array**2).sum(tuple(other for other in range(array.ndim) if other != axis)))
                bins = [norms[at : at + curve["per_bin"]] for at in range(0, len(norms), curve["per_bin"])]
                matching += all(
                    np.allclose(curve[name], [choose(part) for part in bins], rtol=1e-6)
                    for name, choose in (("low", np.min), ("mean", np.mean), ("high", np.max))
                )
            assert matching, (str(one.path), curve["label"])


def test_curves_of_long_axes_are_binned() -> None:
    torch.manual_seed(0)
    value = torch.randn(3_000, 7)
    session = finished(lw.tree({"w": value}), measure=False)
    answer = leaf.norms(session, "w")
    assert answer is not None
    long, short = answer["axes"]
    assert (long["count"], long["per_bin"], len(long["mean"])) == (3_000, 6, 500)
    norms = value.double().norm(dim=1).reshape(500, 6)
    assert np.allclose(long["mean"], norms.mean(1))
    assert np.allclose(long["high"], norms.max(1).values)
    assert np.allclose(short["low"], value.double().norm(dim=0))
    session.close()


# -- pictures --------------------------------------------------------------------------------------------


def decoded(data: bytes) -> Any:
    """The indices of colors in a PNG with a palette, without filters; checksums are checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + length]
        [checksum] = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + content)
        if kind == b"IHDR":
            width, height, depth, color, *_ = struct.unpack(">IIBBBBB", content)
            assert (depth, color) == (8, 3)
            size = height, width
        elif kind == b"IDAT":
            packed += content
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(size[0], size[1] + 1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:]


def pooled(matrix: Any, step: int) -> Any:
    """The value with the largest magnitude of each block; of two, the positive one. NaN first."""
    height, width = (-(-size // step) for size in matrix.shape)
    cells = np.empty((height, width))
    for y in range(height):
        for x in range(width):
            block = matrix[y * step : (y + 1) * step, x * step : (x + 1) * step].ravel()
            if np.isnan(block).any():
                cells[y, x] = np.nan
            else:
                cells[y, x] = max(block.tolist(), key=lambda value: (abs(value), value))
    return cells


def colors(cells: Any, limit: float) -> Any:
    found = np.empty(cells.shape, np.uint8)
    for place, value in np.ndenumerate(cells):
        if np.isnan(value):
            found[place] = NAN
        elif np.isinf(value):
            found[place] = INFINITE
        else:
            found[place] = STEPS + round(STEPS * max(-1.0, min(1.0, value / limit)))
    return found


def as_matrix(array: Any, down: int = 0) -> Any:
    others = [axis for axis in range(array.ndim) if axis != down]
    return array.transpose(down, *others).reshape(array.shape[down], -1)


def check_picture(session: Session, path: str, layout: str, matrix: Any, gaps: Any = None) -> None:
    """Every tile of every level against a matrix with one value for each pixel of level 0."""
    [facts] = [view for view in leaf.leaf(session, path)["views"] if view["layout"] == layout]
    assert (facts["rows"], facts["columns"]) == matrix.shape
    limit = leaf.scale(session, path, layout)["limit"]
    assert 256 << (facts["levels"] - 1) >= max(matrix.shape)
    for level in range(facts["levels"]):
        expected = colors(pooled(matrix, 1 << level), limit)
        if level == 0 and gaps is not None:
            expected[gaps] = EMPTY
        for y in range(-(-expected.shape[0] // 256)):
            for x in range(-(-expected.shape[1] // 256)):
                data, sampled = leaf.tile(session, path, layout, level, y, x, limit)
                assert sampled == 1
                part = expected[y * 256 : (y + 1) * 256, x * 256 : (x + 1) * 256]
                found = decoded(data)
                assert found.shape == part.shape
                assert np.array_equal(found, part), (path, layout, level, y, x)
    source = random.Random(0)
    for _ in range(40):
        row, column = source.randrange(matrix.shape[0]), source.randrange(matrix.shape[1])
        answer = leaf.value(session, path, layout, row, column)
        if gaps is not None and gaps[row, column]:
            assert answer == {"index": None, "text": ""}
        else:
            assert float(answer["text"]) == pytest.approx(matrix[row, column], rel=1e-5)


@pytest.mark.parametrize(
    "shape", [(300, 270), (3, 600), (600, 3), (5, 20, 31), (2, 3, 4, 50), (256, 256), (257, 2), (2, 513), (1, 7, 3)]
)
def test_matrices_are_drawn_value_by_value(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    session = finished(lw.tree({"w": torch.randn(shape)}))
    layout = pictures.layout_of(session.leaf("w"), "matrix")
    assert isinstance(layout, pictures.MatrixLayout)
    array = dense(session.leaf("w"))
    check_picture(session, "w", "matrix", as_matrix(array, layout.axis))
    for row, column in ((0, 0), (layout.rows - 1, layout.columns - 1)):
        index = leaf.value(session, "w", "matrix", row, column)["index"]
        assert float(leaf.value(session, "w", "matrix", row, column)["text"]) == pytest.approx(
            array[tuple(index)], rel=1e-5
        )
    session.close()


@pytest.mark.parametrize("shape", [(700,), (1, 300), (1,), (5, 1, 1), (1, 1, 257)])
def test_vectors_are_drawn_as_a_strip(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    session = finished(lw.tree({"w": torch.randn(shape)}))
    check_picture(session, "w", "strip", dense(session.leaf("w")).reshape(1, -1))
    session.close()


def test_values_that_are_not_finite_have_colors_of_their_own() -> None:
    value = torch.randn(300, 300)
    value[3, 4], value[5, 6], value[7, 8] = float("nan"), float("inf"), -float("inf")
    value[9] = 0
    session = finished(lw.tree({"w": value}))
    check_picture(session, "w", "matrix", value.double().numpy())
    assert leaf.value(session, "w", "matrix", 3, 4)["text"] == "nan"
    session.close()


CONVOLUTIONS = {
    "a first layer": torch.nn.Conv2d(3, 20, 7), "many inputs": torch.nn.Conv2d(40, 70, 3),
    "one axis": torch.nn.Conv1d(2, 9, 5), "three axes": torch.nn.Conv3d(3, 8, 3),
    "three axes and many inputs": torch.nn.Conv3d(16, 33, (2, 3, 4)), "transposed": torch.nn.ConvTranspose2d(8, 20, 3),
    "depthwise": torch.nn.Conv2d(12, 12, 3, groups=12),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_filters_are_drawn_one_by_one(name: str) -> None:
    convolution = CONVOLUTIONS[name]
    session = finished(lw.tree(convolution))
    layout = pictures.layout_of(session.leaf("weight"), "filters")
    assert isinstance(layout, pictures.FilterLayout)
    values = convolution.weight.detach().double().numpy()
    if isinstance(convolution, torch.nn.ConvTranspose2d):
        values = values.swapaxes(0, 1)
    outs, ins, *space = values.shape
    depth, high, wide = (1,) * (3 - len(space)) + tuple(space)
    values = values.reshape(outs, ins * depth, high, wide)
    per_line = layout.per_line
    matrix = np.zeros((-(-outs // per_line) * (high + 1), per_line * ins * depth * (wide + 1)))
    gaps = np.ones(matrix.shape, bool)
    for out in range(outs):
        for part in range(ins * depth):
            top, left = out // per_line * (high + 1), (out % per_line * ins * depth + part) * (wide + 1)
            place = slice(top, top + high), slice(left, left + wide)
            matrix[place], gaps[place] = values[out, part], False
    check_picture(session, "weight", "filters", matrix[:-1, :-1], gaps[:-1, :-1])
    session.close()


def test_the_pictures_of_real_leaves_are_right(session: Session) -> None:
    drawn = 0
    for one in sorted(session.tree, key=lambda one: one.size):
        views = leaf.leaf(session, str(one.path))["views"]
        if views and views[-1]["layout"] == "matrix" and one.size < 3_000 and drawn < 6:
            layout = pictures.layout_of(session.leaf(str(one.path)), "matrix")
            assert isinstance(layout, pictures.MatrixLayout)
            check_picture(session, str(one.path), "matrix", as_matrix(dense(one), layout.axis))
            drawn += 1


@pytest.mark.parametrize("shape", [(2_000, 3_000), (3, 300_000), (300_000, 3), (40, 50, 600)])
def test_huge_leaves_are_sampled_and_the_answer_says_so(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "BUDGET", 1 << 14)
    monkeypatch.setattr(pictures, "_BAND_VALUES", 1 << 12)
    value = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape)
    layout = pictures.layout_of(lw.tree({"w": value})["w"], "matrix")
    read = [0]
    values = layout.values

    def counted(box: Any) -> Any:
        part = values(box)
        read[0] += part.size
        return part

    monkeypatch.setattr(layout, "values", counted)
    tile = pictures.tile(layout, layout.levels - 1, 0, 0)
    assert tile.sampled > 1
    assert read[0] <= 3 << 14
    assert np.isfinite(tile.cells).all()
    assert (tile.cells > 0).all()  # every pixel shows a value that is there, and in order
    assert (np.diff(tile.cells[:, 0]) >= 0).all()
    # A tile of level 0 is small enough to be read whole.
    assert pictures.tile(layout, 0, 0, 0).sampled == 1 or layout.rows * layout.columns > pictures.BUDGET


# -- comparing -------------------------------------------------------------------------------------------


def pair() -> tuple[lw.Tree, lw.Tree, torch.nn.Module, torch.nn.Module]:
    first, second = built("GPT2LMHeadModel"), built("GPT2LMHeadModel")
    with torch.no_grad():
        second.transformer.h[0].attn.c_attn.weight.mul_(1.5)
        second.transformer.h[1].ln_1.bias.add_(1)
    second.transformer.h[1].mlp.c_fc.weight.data = second.transformer.h[1].mlp.c_fc.weight.data.half()
    second.transformer.extra = torch.nn.Linear(3, 3)
    del second.transformer.ln_f
    return lw.tree(first), lw.tree(second), first, second


def test_the_diff_is_that_of_the_library_and_of_torch() -> None:
    a, b, first, second = pair()
    session = finished(a, b)
    expected = lw.diff(a, b, values=True)
    found = comparison.diff(session, comparison.ALL, "", "", False, 0, 500)
    assert [(row["path"], tuple(row["kinds"])) for row in found["rows"]] == [(one.path, one.kinds) for one in expected]
    by_path = {row["path"]: row for row in found["rows"]}
    for path, value in first.named_parameters():
        row = by_path[path]
        try:
            other = second.get_parameter(path)
        except AttributeError:
            assert row["kinds"] == ["removed"]
            continue
        distance = ((other.double() - value.double()).norm() / value.double().norm()).item()
        if torch.equal(value, other):
            assert row["kinds"] == ["same"]
        elif row["relative_l2"] not in (None, "inf"):
            assert row["relative_l2"] == pytest.approx(distance, rel=1e-5)
    assert {row["path"] for row in found["rows"] if "added" in row["kinds"]} == {
        "transformer.extra.weight", "transformer.extra.bias",
    }  # fmt: skip
    # Without a kind, all but those that are the same; with one, those that have it.
    changed = comparison.diff(session, "", "", "", False, 0, 500)
    assert [row["path"] for row in changed["rows"]] == [r["path"] for r in found["rows"] if r["kinds"][0] != "same"]
    for entry in found["counts"]:
        some = comparison.diff(session, entry["kind"], "", "", False, 0, 500)
        assert all(entry["kind"] in row["kinds"] for row in some["rows"])
    windows = [comparison.diff(session, comparison.ALL, "", "", False, at, 3)["rows"] for at in range(0, 500, 3)]
    assert [row for window in windows for row in window] == found["rows"]
    ordered = comparison.diff(session, "", "", "change", True, 0, 500)["rows"]
    amounts = [row["relative_l2"] for row in ordered if row["kinds"][0] == "changed"]
    assert amounts == sorted(amounts, key=float, reverse=True)
    words = comparison.diff(session, "", "attn weight", "", False, 0, 500)["rows"]
    assert [row["path"] for row in words] == ["transformer.h.0.attn.c_attn.weight"]
    session.close()


def test_the_plan_is_that_of_the_library(tmp_path: Path) -> None:
    a, _, first, _ = pair()
    state = {
        name: value for name, value in first.state_dict().items() if "ln_f" not in name and name != "lm_head.weight"
    }
    torch.save({**state, "more": torch.ones(3)}, tmp_path / "b.pt")
    with lw.open(tmp_path / "b.pt") as file:
        expected = lw.plan(a, file)
        for session in (finished(a, file), finished(file, a)):
            found = comparison.plan(session, "", "", 0, 500)
            assert found["names"] == [
                session.names[0 if session.tree is a else 1],
                session.names[1 if session.tree is a else 0],
            ]
            assert found["holds"] == expected.holds
            loads = {row["path"]: row["source"] for row in found["rows"] if row["status"] == "loads"}
            assert loads == {one["target"]: one["source"] for one in expected.json()["leaves"]}
            problems = [(row["status"], row["path"]) for row in found["rows"] if row["message"] is not None]
            assert problems == [(one["kind"], one["name"]) for one in expected.json()["problems"]]
            assert any("ln_f" in path for _, path in problems)
            counts = {entry["status"]: entry["count"] for entry in found["counts"]}
            assert counts == dict(Counter(row["status"] for row in found["rows"]))
            for status, count in counts.items():
                assert comparison.plan(session, status, "", 0, 500)["total"] == count
            assert "plan" in whole.summary(session)["views"]
            session.close()


def test_large_files_are_measured_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_checkpoint(tmp_path / "a.pt")
    monkeypatch.setattr("leafwise.web.session.AUTOMATIC", 100)
    with lw.open(tmp_path / "a.pt") as t:
        reason = why_not_measured([t])
        assert reason is not None
        session = finished(t, measure=None)
        assert {job.state for job in session.jobs.values()} == {"off"}
        assert whole.progress(session)["stats"]["message"] == reason
        assert tables.table(session, "", "", False, 0, 500)["rows"] == []
        assert leaf.statistics(session, 'model."0.weight"' if 'model."0.weight"' in session.tree else "model.0.weight")[
            "numbers"
        ]
        session.start("stats")
        while session.jobs["stats"].state == "running":
            time.sleep(0.005)
        assert tables.table(session, "", "", False, 0, 500)["total"] == t.counts.leaves
        session.close()
    assert why_not_measured([lw.tree(torch.nn.Linear(100, 100))]) is None  # it is in memory
