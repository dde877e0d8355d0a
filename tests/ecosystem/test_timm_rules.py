"""The ready-made rules agree with timm on models of timm: a part of `make timmrules`, which compares every model."""

from importlib.util import find_spec

import pytest
from tools import sweeps, timm_rules

import leafwise as lw

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")

# A transformer, one with layers that do not decay, hierarchical ones with and without downsampling in the stages,
# convolutional networks, a matcher that is a function, and models inside models.
EQUAL = [
    "test_vit", "vit_tiny_patch16_dinov3_qkvb", "test_convnext", "swin_tiny_patch4_window7_224", "test_resnet",
    "test_efficientnet", "regnetx_002", "densenet121", "cs3darknet_focus_s", "inception_v3", "twins_svt_small",
    "qwen3_vit_88m",
]  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_every_rate_and_every_decay_is_the_same_as_in_timm(name: str) -> None:
    found = timm_rules.compared(name)
    assert (found.why, found.only_timm, found.only_leafwise) == ("", (), ())
    assert found.levels == found.timm_levels > 2


@pytest.mark.parametrize("name", ["test_convnext", "test_resnet", "regnetx_002", "densenet121", "cs3darknet_focus_s"])
def test_the_tree_alone_gives_the_same_rates(name: str) -> None:
    model = timm_rules.build(name)
    assert timm_rules.scales_by_tree(model) == pytest.approx(timm_rules.timm_scales(model))


def test_parameters_in_no_weight_decay_are_not_decayed_and_are_listed() -> None:
    model = timm_rules.build("test_vit")
    note = lw.groups(model, [lw.no_decay()]).rules[0].note
    assert "by the model's no_weight_decay()" in note
    assert "pos_embed" in note


def test_the_page_explains_every_difference_from_timm() -> None:
    scaled = timm_rules.compared("xcit_nano_12_p8_224")
    assert {name.rpartition(".")[2] for name in scaled.only_timm} == {"temperature"}
    assert timm_rules.compared("levit_128s").why == timm_rules.MATCHES_NOTHING
    assert timm_rules.compared("pit_ti_224").why == timm_rules.NO_MATCHER
    assert timm_rules.compared("coat_tiny").why == timm_rules.SHARED
    with pytest.raises(lw.RuleError, match=r'are one leaf, .*add Rule\("cpe1\.proj\.weight", wins=True\)'):
        timm_rules.scales(timm_rules.build("coat_tiny"))


def test_the_page_has_every_family() -> None:
    table = sweeps.results()["timm families"].text
    families = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert families[1:] == timm_rules.families()
