"""What tools/study.py can compare: the scales with their recipes, the models of each comparison, and the figures that
the paper of the GRT (arXiv:2608.15062) prints for them, as public notes on it quote them."""
import dataclasses

METHODS = ("grt", "mor", "poisson", "rrt", "ouro")
BEYOND = (4 / 3, 5 / 3, 2)  # times R: the depths that nothing was trained at; 8, 10, 12 for R = 6


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of a table: a model, trained once for each seed."""

    label: str
    preset: str
    flags: tuple = ()  # of train, besides the recipe
    steps: float = 1  # times the scale's
    printed: float | None = None  # the paper's validation loss
    group: str = ""  # rows that are compared with the dense model of the same group

    def name(self, steps):
        """The directory of its runs: cases of several comparisons that train the same share them."""
        flags = [word.removeprefix("--") for word in self.flags]
        return "-".join([self.preset, *flags, f"steps{self.run_steps(steps)}"])

    def run_steps(self, steps):
        return max(1, round(self.steps * steps))


@dataclasses.dataclass(frozen=True)
class Scale:
    dense: str
    steps: int
    recipe: tuple
    lr: float  # peak
    unit: str
    validation: int  # batches of a validation while training; the last evaluation reads all
    held_out: int = 0  # bytes of the novel held out that are read; 0: all, or the data that is named


def paper(dense):
    return Scale(dense, 20000, ("--recipe", "paper"), 6e-4, "token", 25)


SCALES = {
    "nano": Scale("dense-nano", 2500, ("--batch-size", "4"), 2e-3, "byte", 16, 200_000),
    "small": paper("gpt2-small"),
    "medium": paper("gpt2-medium"),
    "large": paper("gpt2-large"),
}

# Printed validation losses, nats per token. iso-param at Medium and Large: of the GRT, dense and (Medium) poisson alone.
PRINTED = {
    "isoflop": {
        "small": {"dense": 3.15, "mor": 3.30, "poisson": 3.23, "ouro": 3.19, "rrt": 3.14, "grt": 3.14},
        "medium": {"dense": 2.84, "mor": 3.02, "poisson": 2.97, "ouro": 2.93, "rrt": 2.95, "grt": 2.89},
        "large": {"dense": 2.71, "mor": 2.91, "poisson": 2.93, "ouro": 2.82, "rrt": 2.85, "grt": 2.77},
    },
    "isoparam": {
        "small": {"dense": 3.15, "mor": 3.12, "poisson": 3.06, "ouro": 3.10, "rrt": 3.08, "grt": 3.04},
        "medium": {"dense": 2.84, "poisson": 2.74, "grt": 2.76},
        "large": {"dense": 2.71, "grt": 2.65},
    },
}
LADDER = ("recurrence only", "+ prelude, coda", "+ state noise", "+ injection", "+ gate = grt")
# 20,000 steps. Printed are row 5, dense (3.157) and the differences from row to row, which the others follow from.
PRINTED_LADDER = {"small": (3.264, 3.229, 3.211, 3.189, 3.141)}
PRINTED_BIAS = {"small": {"4": 3.141, "2": 3.152, "0": 3.160, "-2": 3.151}}
PRINTED_TEMPERATURE = {"small": {"0.5": 3.62, "1": 3.60, "2": 3.63}}  # evidently of a shorter schedule
PRINTED_NOISE = {"small": {"0": 3.229, "0.1": 3.211, "0.2": 3.230}}  # row 3 of the ladder, from differences too
PRINTED_BEYOND = "The paper prints, for GRT Large with R = 6: 2.68 at 6, 2.69 at 8, 2.72 at 10, 2.74 at 12 recurrences."


def dense(scale, steps=1.0, group="", printed=None):
    return Case("dense", SCALES[scale].dense, (), steps, printed, group)


def methods(comparison, scale):
    printed = PRINTED[comparison].get(scale, {})
    suffix = "-isoparam" if comparison == "isoparam" else ""
    rows = [Case(method, f"{method}-{scale}{suffix}", printed=printed.get(method)) for method in METHODS]
    return [dense(scale, printed=printed.get("dense")), *rows]


def ladder(scale, steps=1.0, group="", printed=()):
    rows = []
    for row, part in enumerate(LADDER, 1):
        preset = f"grt-{scale}" if row == len(LADDER) else f"grt-{scale}-ablation-{row}"
        rows.append(Case(f"{row} {part}", preset, (), steps, printed[row - 1] if printed else None, group))
    return rows


def sweep(scale, preset, flag, values, default, printed):
    """One row a value; the default's trains without the flag, so that other comparisons share its runs."""
    return [
        Case(f"{flag} {value}", preset, () if value == default else (f"--{flag}", value),
             printed=printed.get(scale, {}).get(value))
        for value in values
    ]


def learning_rate(scale):
    """Half, once and twice the scale's peak; dense is compared with itself at the same one."""
    rows = []
    for factor in (0.5, 1, 2):
        lr = f"{factor * SCALES[scale].lr:g}"
        flags = () if factor == 1 else ("--lr", lr)
        rows.append(Case("dense", SCALES[scale].dense, flags, group=f"lr {lr}"))
        rows += [Case(method, f"{method}-{scale}", flags, group=f"lr {lr}") for method in METHODS]
    return rows


def budget(scale):
    rows = []
    for factor in (0.5, 1, 2):
        group = f"{factor:g} x"
        rows.append(dense(scale, factor, group))
        rows += [Case(method, f"{method}-{scale}", (), factor, None, group) for method in ("grt", "mor", "poisson")]
    return rows


def horizon(scale):
    rows = []
    for factor in (0.1, 1):
        group = f"{factor:g} x"
        rows += [dense(scale, factor, group), *ladder(scale, factor, group)]
    return rows


COMPARISONS = {
    "isoflop": lambda scale: methods("isoflop", scale),
    "isoparam": lambda scale: methods("isoparam", scale),
    "ablation": lambda scale: [
        dense(scale, printed=3.157 if scale == "small" else None),
        *ladder(scale, printed=PRINTED_LADDER.get(scale, ())),
    ],
    "noise": lambda scale: [
        dense(scale),
        *sweep(scale, f"grt-{scale}-ablation-3", "state-noise", ("0", "0.1", "0.2"), "0.1", PRINTED_NOISE),
        *sweep(scale, f"grt-{scale}", "gate-noise", ("0", "0.1", "0.2"), "0.1", {}),
    ],
    "gate-bias": lambda scale: [
        dense(scale),
        *sweep(scale, f"grt-{scale}", "gate-bias", ("4", "2", "0", "-2"), "4", PRINTED_BIAS),
    ],
    "temperature": lambda scale: [
        dense(scale),
        *sweep(scale, f"grt-{scale}", "gate-temperature", ("0.5", "1", "2"), "1", PRINTED_TEMPERATURE),
    ],
    "learning-rate": learning_rate,
    "extrapolate": lambda scale: [
        dense(scale), Case("grt", f"grt-{scale}"), Case("poisson", f"poisson-{scale}"),
    ],
    "budget": budget,
    "horizon": horizon,
}

QUESTIONS = {
    "isoflop": "The six methods at equal block applications for each token",
    "isoparam": "The six methods with about as many parameters as the dense model",
    "ablation": "The ablation ladder: each row adds one part to the row before",
    "noise": "State noise on row 3 of the ladder, gate noise on the full model",
    "gate-bias": "The gate's initial bias",
    "temperature": "The gate's temperature",
    "learning-rate": "Half, once and twice the peak learning rate",
    "extrapolate": "Depths beyond those trained",
    "budget": "Half, once and twice the training tokens",
    "horizon": "The ablation ladder on a short and a long schedule",
}


def cases(comparison, scale):
    """The rows of a table. Raises ValueError where the scale lacks its presets."""
    if comparison in ("ablation", "noise", "horizon") and scale == "large":
        raise ValueError(f"--comparison {comparison}: the ladder exists at nano, small and medium, not at large")
    return COMPARISONS[comparison](scale)
