"""With both frameworks installed, a program that uses one of them does not import the other."""

import subprocess
import sys

import pytest

USE = """
import numpy as np, leafwise as lw
print(lw.tree(model)); lw.stats(model); lw.check(model)
path = lw.save(model, "model.safetensors")
model = lw.load(model, path)
assert lw.diff(model, path).same
lw.initialize(model, [lw.Rule("**", init="normal")])
"""

PROGRAMS = {
    "torch": "import torch; model = torch.nn.Linear(2, 3)",
    "jax": "import jax.numpy as jnp; model = {'kernel': jnp.ones((2, 3))}",
    "flax": "from flax import nnx; model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))",
    "equinox": "import equinox, jax; model = equinox.nn.Linear(2, 3, key=jax.random.key(0))",
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_a_program_imports_only_its_own_framework(framework: str, tmp_path: object) -> None:
    other = "jax" if framework == "torch" else "torch"
    code = f"import sys\n{PROGRAMS[framework]}\nassert {other!r} not in sys.modules\n{USE}\n"
    code += f"assert {other!r} not in sys.modules\nprint('done')"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=str(tmp_path), check=False
    )
    assert ran.stdout.endswith("done\n"), ran.stdout + ran.stderr
