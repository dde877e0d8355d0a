"""Checks a wheel that was installed into an empty environment: it imports, shows a file, and says what is missing."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main(bin_folder: str) -> None:
    python, leafwise = f"{bin_folder}/python", f"{bin_folder}/leafwise"
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
        shown = output(leafwise, "show", str(file))
        assert "weight  2×3  float32" in shown, shown
        assert "6 parameters" in shown, shown
        data = json.loads(output(python, "-m", "leafwise", "show", str(file), "--json"))
        assert data["counts"]["parameters"] == 6, data
        stats = subprocess.run([leafwise, "stats", str(file)], capture_output=True, encoding="utf-8")
        assert (stats.returncode, stats.stderr) == (1, "leafwise: lw.stats needs numpy: pip install numpy\n"), (
            stats.stderr
        )
    typed = output(
        python, "-c", "import leafwise, pathlib; print((pathlib.Path(leafwise.__file__).parent / 'py.typed').exists())"
    )
    assert typed.strip() == "True", "py.typed is missing"
    built = output(python, "-c", "from leafwise.web import asset; print(len(asset('app.js')), len(asset('app.css')))")
    assert min(map(int, built.split())) > 1_000, "the page of the viewer is missing"
    find = "import importlib.util; print(importlib.util.find_spec('leafwise_gluon'))"
    assert output(python, "-c", find).strip() == "None", "the wheel contains leafwise-gluon"
    if shutil.which("cc"):
        kernels = "pathlib.Path(leafwise.__file__).parent / 'kernels'"
        output(python, "-c", f"import ctypes, leafwise, pathlib; ctypes.CDLL(str({kernels} / '_cpu.shared'))")
    tour = subprocess.run([leafwise, "tour"], capture_output=True, encoding="utf-8")
    assert tour.returncode == 1
    assert "pip install 'leafwise[torch]'" in tour.stderr, tour.stderr
    print(f"{output(leafwise, '--version').strip()} works in an empty environment")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1])
