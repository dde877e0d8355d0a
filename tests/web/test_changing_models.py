"""What the viewer says about leaves that cannot be checked, parts of a model, files of torch.save and models without
values."""

import base64
import gzip
import json
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.web.asking import Client
from tests.web.pages import until

import leafwise as lw
from leafwise.cli import main
from leafwise.web import watched_files
from leafwise.web.answers import whole


def wait(client: Client) -> None:
    while any(job["state"] == "running" for job in client.api("progress").values() if isinstance(job, dict)):
        time.sleep(0.02)


def test_a_leaf_that_is_not_checked_is_not_called_healthy() -> None:
    source = {"c": np.array([1 + 2j, np.nan]), "w": np.ones(3), "s": torch.eye(3).to_sparse()}
    with lw.view(source, browser=False) as view:
        client = Client(view.url)
        wait(client)
        health = {row["path"]: row["health"] for row in client.api("rows", depth=9)["rows"]}
        assert health == {"": None, "c": None, "w": "ok", "s": None}
        assert {row["path"] for row in client.api("findings")["skipped"]} == {"c", "s"}


def test_the_map_of_a_part_begins_at_the_part() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
    with lw.view(lw.tree(model)["1"], browser=False) as view:
        answer = Client(view.url).api("map", path="")  # what the page asks for first
    assert answer["cell"]["bytes"] == 80
    assert [cell["path"] for cell in answer["cell"]["children"]] == ["1.weight", "1.bias"]


def test_the_expression_of_a_leaf_works_with_torch_load_and_with_open(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save({"model": torch.nn.Linear(3, 2).state_dict(), "step": 1, "more": [torch.zeros(5)]}, path)
    with lw.view(path, browser=False) as view:
        codes = [Client(view.url).api("leaf", path=name)["code"] for name in ("model.weight", "more.0")]
    assert codes == ["checkpoint['model']['weight']", "checkpoint['more'][0]"]
    with lw.open(path) as opened:
        for checkpoint in (torch.load(path), opened):
            assert [tuple(eval(code, {"checkpoint": checkpoint}).shape) for code in codes] == [(2, 3), (5,)]


def meta_model() -> torch.nn.Module:
    with torch.device("meta"):
        return torch.nn.Linear(4, 4)


def test_a_model_without_values_has_a_report_of_its_structure(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    checkpoint = lw.save(torch.nn.Linear(4, 4), tmp_path / "a.safetensors")
    for sources in ([f"{__name__}:meta_model"], [f"{__name__}:meta_model", str(checkpoint)]):
        assert main(["view", *sources, "--export", str(report)]) == 0
        data = report_data(str(report))
        assert data["findings"]["job"]["state"] == "failed"
        assert data["summary"]["counts"]["parameters"] == 20


def report_data(path: str) -> dict[str, Any]:
    """What a report contains."""
    found = re.search('id="report">([^<]*)<', Path(path).read_text(encoding="utf-8"))
    assert found is not None
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return data


def test_a_report_of_a_trained_model_has_the_numbers_of_now(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    with lw.view(model, browser=False) as view:
        wait(Client(view.url))
        torch.nn.init.constant_(model.weight, 7.0)
        data = report_data(view.export(tmp_path / "report.html"))
    numbers = {one["name"]: one["value"] for one in data["leaves"]["weight"]["statistics"]["numbers"]}
    assert numbers["mean"] == 7
    assert data["leaves"]["weight"]["scale"]["limit"] == 7
    assert data["table"]["job"]["state"] == data["findings"]["job"]["state"] == "done"


def test_the_scale_of_a_model_is_that_of_the_values_that_are_drawn() -> None:
    model = torch.nn.Linear(3, 2)
    with lw.view(model, browser=False) as view:
        client = Client(view.url)
        wait(client)
        torch.nn.init.constant_(model.weight, 7.0)
        assert client.api("scale", path="weight", layout="matrix")["limit"] == 7
        torch.nn.init.constant_(model.weight, float("nan"))
        assert client.api("scale", path="weight", layout="matrix")["limit"] == 1


def test_a_replaced_layer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "_EVERY", 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    source = {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "step": 3}
    with lw.view(source, browser=False) as view, lw.view(lw.tree(model)["2"], browser=False) as part:
        client = Client(view.url)
        model(torch.ones(1, 3)).sum().backward()
        source["optimizer"].step()  # type: ignore[attr-defined]
        model.to(torch.bfloat16)
        assert client.api("progress")["warning"] is None
        model[0] = torch.nn.Linear(3, 2)
        assert client.api("progress")["warning"].startswith("model.0 was replaced or removed.")
        assert Client(part.url).api("progress")["warning"] is None
        del model[2]
        assert Client(part.url).api("progress")["warning"].startswith("2 was replaced or removed.")


def test_closing_during_requests_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Barrier(7, timeout=300)  # as many as are answered at the same time, and this one
    closed = threading.Event()

    def slow(*_: object) -> None:
        begun.wait()
        assert closed.wait(300)

    monkeypatch.setattr(whole, "summary", slow)
    view = lw.view({"w": np.ones(3)}, browser=False)
    answers: list[int] = []
    client = Client(view.url)
    threads = [threading.Thread(target=lambda: answers.append(client.get("api/summary").status)) for _ in range(9)]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: len(view._server._server.server_state.tasks) == 9)  # all have arrived, and three wait for their turn
    view.close()
    for thread in threads:
        thread.join(300)
    closed.set()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert len(answers) == 9
    assert set(answers) <= {503}


@pytest.mark.parametrize("is_turned", [False, True])
def test_differences_and_plans_are_searched_like_the_tree(tmp_path: Path, is_turned: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    path = tmp_path / "run.pt"
    torch.save({**model.state_dict(), "Extra.weight": torch.ones(2), "step": 1}, path)
    sources = (path, model) if is_turned else (model, path)
    plans = {"**.weight": 3, "*.weight": 3, "0": 2, "WEIGHT": 0, "Extra": 1, "extra": 1, "weight": 3, "nothing": 0}
    with lw.view(*sources, browser=False) as view:
        client = Client(view.url)
        wait(client)
        assert {query: client.api("plan", query=query)["total"] for query in plans} == plans
        assert {query: client.api("diff", query=query, kind="*")["total"] for query in plans} == plans
        assert client.api("plan", query="role:norm.*")["total"] == 2
        assert client.api("diff", query="step", kind="*")["total"] == 1
        for route in ("plan", "diff"):
            assert "braces" in client.api(route, query="{")["error"]
            assert "is not a filter" in client.api(route, query="nothing:1")["error"]
