"""`executor=` beside sharded models on real ranks: it is for checkpoints, and a model in memory is refused."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.distributed.models import even, fsdp
from tests.distributed.ranks import run_ranks
from tests.distributed.test_stats import whole_state
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import leafwise as lw


def refused_and_read(folder: str) -> list[str]:
    """The errors for a sharded model. Also checks that workers read a file for one rank, without the others."""
    model = fsdp(even(), init_device_mesh("cpu", (distributed.get_world_size(),)))
    path = str(Path(folder) / f"{distributed.get_rank()}.safetensors")
    lw.save(whole_state(model), path)
    messages = []
    with ThreadPoolExecutor(2) as executor:
        for call in (
            lambda: lw.stats(model, executor=executor),
            lambda: lw.check(model, executor=executor),
            lambda: lw.check(path, against=model, executor=executor),
            lambda: lw.diff(model, path, executor=executor),
            lambda: lw.diff(path, model, executor=executor),
        ):
            with pytest.raises(lw.WalkError) as caught:
                call()
            messages.append(str(caught.value))
        if distributed.get_rank() == 0:  # a file is no work for a team, so that one rank may do it alone
            table = lw.stats(path, executor=executor)
            assert lw.diff(path, path, executor=executor).same
            assert list(lw.check(path, executor=executor)) == list(lw.check(path))
        distributed.barrier()
    together = lw.stats(model)
    if distributed.get_rank() == 0:
        assert {name: row.count for name, row in table.items()} == {name: row.count for name, row in together.items()}
    assert lw.diff(model, path).same
    return messages


def test_an_executor_does_not_take_a_sharded_model(tmp_path: Path) -> None:
    for messages in run_ranks(2, refused_and_read, str(tmp_path)):
        verbs = [message.partition(" with executor= needs a checkpoint, not ")[0] for message in messages]
        assert verbs == ["lw.stats", "lw.check", "lw.check", "lw.diff", "lw.diff"]
        assert all("workers cannot reach values in memory" in message for message in messages)
