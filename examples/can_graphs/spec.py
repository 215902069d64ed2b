"""The experiments as typed Python values: a VGAE and a GAT for each of six data sets.

    tasuki plan spec.py:make
    tasuki run spec.py:make --experiment vgae_hcrl_ch gat_hcrl_ch --set lr=0.003

`make` is for a CPU and the data of `python generate.py`, `quick` is over in seconds, `full` is for
GPUs and the true counts. What one key can say needs no function here: `--set` says it. What ties
experiments together, such as each GAT that starts from the VGAE of its own data, is what Python is
for. Nothing here imports torch, so that planning is quick.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from tasuki import Cluster, Evaluate, Expect, Experiment, Spec, Stage, Validate

STANDARD = ("hcrl_ch", "hcrl_sa")
COMPLEX = ("set_01", "set_02", "set_03", "set_04")
VALIDATE = Validate(every="1 epoch", metric="auc", mode="max")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Of both networks, so that the weights of one fit the other."""

    width: int = 32
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0
    """Above 0, steps that are split otherwise draw other numbers."""


@dataclass(frozen=True, kw_only=True)
class Hours:
    """What people asked for so far, by the kind of the data set; no measurement."""

    standard: float
    complex: float

    def expect(self, name: str, *, share: float = 1.0) -> Expect:
        hours = self.standard if name in STANDARD else self.complex
        return Expect(wall=f"{round(3600 * share * hours)}s")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that differs between `make`, `quick` and `full`."""

    data: str = "data"
    runs: str = "runs"
    cluster: Cluster = field(default_factory=lambda: Cluster(gpu="cpu", gpus=1, cpus=1))
    encoder: Encoder = field(default_factory=Encoder)
    effective_batch: int = 32
    safety_factor: float | None = None
    """Of the largest micro-batch that fits; on a plain CPU there is none. 0.5 unless given."""
    vgae_epochs: int = 12
    easy_epochs: int = 2
    """From easy windows to hard ones."""
    gat_epochs: int = 12
    vgae_hours: Hours | None = None
    gat_hours: Hours | None = None
    is_evaluated: bool = True
    """At the end, by a process of its own."""


def make() -> Spec:
    return each_set(Setup())


def full() -> Spec:
    """All graphs. Memory is that of the GAT of a complex data set."""
    return each_set(
        Setup(
            data="data-full",
            runs="${SCRATCH:-.}/runs-full",
            cluster=Cluster(gpu="a100-40gb", gpus=1, cpus=8, memory="106G", time_limit="8h"),
            encoder=Encoder(width=128, heads=8, layers=3),
            effective_batch=512,
            safety_factor=0.5,
            vgae_epochs=100,
            easy_epochs=10,
            gat_epochs=100,
            vgae_hours=Hours(standard=8, complex=12),
            gat_hours=Hours(standard=4.8, complex=14.4),
        )
    )


def quick() -> Spec:
    """Both networks in one experiment and two processes, validated and not evaluated: importing
    torch_geometric takes longer than training."""
    seconds = Hours(standard=5 / 3600, complex=5 / 3600)  # given, so that nothing is measured
    setup = Setup(
        runs="runs-quick",
        effective_batch=16,
        vgae_epochs=3,
        easy_epochs=4,
        vgae_hours=seconds,
        gat_hours=seconds,
        is_evaluated=False,
    )
    easy, _ = gat(setup, "hcrl_ch", start="vgae", validate_easy=VALIDATE)
    stages = [vgae(setup, "hcrl_ch", name="vgae"), easy]
    return spec(setup, {"quick": Experiment(stages=stages)})


def each_set(setup: Setup) -> Spec:
    experiments = {}
    for name in STANDARD + COMPLEX:
        experiments[f"vgae_{name}"] = Experiment(stages=[vgae(setup, name)])
        experiments[f"gat_{name}"] = Experiment(stages=gat(setup, name, start=f"vgae_{name}/train"))
    return spec(setup, experiments)


def spec(setup: Setup, experiments: dict[str, Experiment]) -> Spec:
    defaults = Stage(
        params=asdict(setup.encoder),
        effective_batch=setup.effective_batch,
        buckets={"cost": "nodes+edges", "budget": "auto"},
        **({"safety_factor": setup.safety_factor} if setup.safety_factor else {}),
        lr=0.01,
        seed=3,
        validate=VALIDATE,
        evaluate=Evaluate(after="end") if setup.is_evaluated else None,
    )
    return Spec(
        project="can-graphs",
        runs=setup.runs,
        cluster=setup.cluster,
        defaults=defaults,
        experiments=experiments,
    )


def vgae(setup: Setup, data: str, *, name: str = "train") -> Stage:
    return Stage(
        name=name,
        recipe="recipe:VGAE",
        data=f"{setup.data}/{data}",
        epochs=setup.vgae_epochs,
        expect=setup.vgae_hours and setup.vgae_hours.expect(data),
    )


def gat(
    setup: Setup, data: str, *, start: str, validate_easy: Validate | None = None
) -> list[Stage]:
    """Windows from easy to hard, from the encoder that a VGAE has learnt; then all, shuffled. The
    first is a preparation: its last weights count, whatever they can do by themselves."""
    total = setup.easy_epochs + setup.gat_epochs
    common = {"recipe": "recipe:GAT", "data": f"{setup.data}/{data}"}
    hours = setup.gat_hours
    easy = Stage(
        name="easy",
        order="score",
        epochs=setup.easy_epochs,
        init_from=start,
        strict=False,
        validate=validate_easy,
        expect=hours and hours.expect(data, share=setup.easy_epochs / total),
        **common,
    )
    every = Stage(
        name="all",
        epochs=setup.gat_epochs,
        expect=hours and hours.expect(data, share=setup.gat_epochs / total),
        **common,
    )
    return [easy, every]
