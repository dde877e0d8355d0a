"""Files with correct checksums and a forged leafwise entry are refused."""

from pathlib import Path

import numpy as np
import pytest

import leafwise as lw
from leafwise.files.checksums import CHUNK
from leafwise.files.record import TENSORS, sealed


def craft(path: Path, entry: str) -> Path:
    """A file with correct checksums and the given entry."""
    from leafwise.files.checksums import checksum

    data = np.ones(4, np.float32).tobytes()
    entry = entry.replace("SUM", checksum(data))
    rest = f' {entry}"}},"a":{{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}}}'
    path.write_bytes(sealed(rest, TENSORS, lead=8, multiple=8) + data)
    return path


GOOD = f'"chunk":{CHUNK},"sums":"SUM"'.replace('"', '\\"')


def test_a_forged_entry_that_is_valid_is_accepted(tmp_path: Path) -> None:
    assert lw.verify(craft(tmp_path / "a.safetensors", "{" + GOOD + "}")).leaves == 1


@pytest.mark.parametrize(
    "more",
    [
        '"roles":[-1],"role_table":[["x",null]]',
        '"roles":[5],"role_table":[["x",null]]',
        '"roles":[0],"role_table":[[5,null]]',
        '"roles":[0],"role_table":[["x","abc"]]',
        '"roles":[0],"role_table":[["x",[1]]]',
        '"roles":[0,0],"role_table":[["x",null]]',
        '"kinds":"pp"',
        '"kinds":"x"',
        '"kinds":["p"]',
        '"ties":[["b","nothing",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","b",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",null,null]]',
        '"ties":[["b","a",null,null],["b","a",null,null]],"tie_roles":[0,0],"role_table":[["x",null]]',
        '"ties":[["b","a",[[0,9999999999999999999999,1]],[1,0]]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",[7],null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",null,[true]]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",{},null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[[5,"a",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"scalars":["a"],"values":[1]',
        '"scalars":["s","s"],"values":[1,2]',
        '"scalars":["s"],"values":[]',
        '"scalars":[5],"values":[1]',
        '"scalars":"s","values":"x"',
        '"scalars":["s"],"values":[{"complex":[1' + "0" * 400 + ",1]}]",
        '"scalars":["s"],"values":[{"bytes":"!!"}]',
        '"scalars":["s"],"values":[{"float":"1_0"}]',
        '"scalars":["s"],"values":[{"float":5}]',
        '"scalars":["s"],"values":[{"unknown":5}]',
        '"scalars":["s"],"values":[{}]',
        '"scalars":["s"],"values":[' + "[" * 5000 + "]" * 5000 + "]",
    ],
)
def test_entries_that_are_not_valid_are_refused(more: str, tmp_path: Path) -> None:
    path = craft(tmp_path / "a.safetensors", "{" + GOOD + "," + more.replace('"', '\\"') + "}")
    with pytest.raises(lw.FileError):
        lw.open(path)


@pytest.mark.parametrize("entry", ["{}", "[]", "5", "", '{\\"chunk\\":0,\\"sums\\":\\"SUM\\"}', "nonsense"])
def test_entries_that_are_not_entries_are_refused(entry: str, tmp_path: Path) -> None:
    with pytest.raises(lw.FileError):
        lw.open(craft(tmp_path / "a.safetensors", entry))
