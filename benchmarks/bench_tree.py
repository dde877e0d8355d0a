"""Walking, printing and querying 47,337 leaves, compared with PyTorch's own walk and torchinfo."""

import sys

import torchinfo
from common import MixtureOfExperts, in_a_process_of_its_own, interleaved, machine, mixture_of_experts
from figures import exit_status, report

import leafwise as lw

GLOB = "**.experts.*.up.weight"


def check(model: MixtureOfExperts) -> None:
    """Checks the results before they are timed: the same leaves in the same order, the tie, and the printed tree."""
    tree = lw.tree(model)
    named = list(model.named_parameters())
    assert len(tree) == len(named)
    assert all(str(p) == n and leaf.value is v for (p, leaf), (n, v) in zip(tree.items(), named, strict=True))
    assert [[str(name.path) for name in tie.names] for tie in tree.ties] == [["embed.weight", "head.weight"]]
    picture = str(tree)
    assert len(picture.splitlines()) <= 60
    assert "layers.0 … 60  Layer  ×61" in picture
    selected = tree.select(GLOB)
    assert [str(p) for p, _ in selected.items()] == [n for n, _ in named if n.endswith("up.weight")]
    summary = torchinfo.summary(model, verbose=0)
    assert tree.counts.parameters == sum(p.numel() for p in model.parameters())
    # torchinfo counts the tied head a second time; apart from that the two agree.
    assert summary.total_params == tree.counts.parameters + model.head.weight.numel()
    assert len(tree) == 47_337


def main() -> int:
    machine()
    model = mixture_of_experts()
    in_a_process_of_its_own(check, model)
    tree = lw.tree(model)
    times = interleaved(
        15,
        named=lambda: list(model.named_parameters()),
        tree=lambda: lw.tree(model),
        select=lambda: tree.select(GLOB),
        picture=lambda: str(lw.tree(model)),
    )
    info = interleaved(1, torchinfo=lambda: str(torchinfo.summary(model, verbose=0)))["torchinfo"]
    print(f"# {len(tree):,} leaves; named_parameters takes {times['named'] * 1000:.0f} ms, torchinfo {info:.1f} s")
    met = [
        report("lw.tree / list(named_parameters())", times["tree"] / times["named"], 1.0),
        report("str(lw.tree(m)) / torchinfo.summary", times["picture"] / info, 1 / 50),
        report(f"select({GLOB!r}) / lw.tree", times["select"] / times["tree"], 0.5),
    ]
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
