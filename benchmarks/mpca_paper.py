"""What the paper of MPCA SGD measured, and on what: Langer, Hall, He and Rahayu, tables 1 and 2.

Eight machines with a GPU each on a line of 1 Gbit/s. `make bench-mpca` takes the seconds and the
sizes of `SETTINGS` as they are, and shows its own figures beside those of `RESULTS`.
"""

from __future__ import annotations

import dataclasses

WORKERS = 8
#: What a line of 1 Gbit/s carries, in MiB a second.
LINE_MIB_S = 117.0


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model on the paper's machines.

    Attributes:
        name: in targets' names.
        title: for people.
        model_mib: M, its size.
        exchange_seconds: C, of a whole exchange through Spark.
        step_seconds: c, of a training step.
        phases: P, into how many shards MPCA cuts it.
        alpha: MPCA's pull in the paper.
        sparknet_steps: between two exchanges.
        easgd_steps: between two exchanges of one worker.
    """

    name: str
    title: str
    model_mib: float
    exchange_seconds: float
    step_seconds: float
    phases: int
    alpha: float
    sparknet_steps: int
    easgd_steps: int

    @property
    def cycle_seconds(self) -> float:
        """From one snapshot of a shard to the next: a fit of the paper's 13 to 17 steps of R110."""
        if self.phases == 2:
            return 0.7 * self.exchange_seconds + 0.5
        return 0.65 * self.exchange_seconds + 0.75

    @property
    def transfer_seconds(self) -> float:
        """Of the whole model, once, on the line."""
        return self.model_mib / LINE_MIB_S

    @property
    def ring_seconds(self) -> float:
        """In which a worker exchanges its gradient: a ring's, or K servers', 2 (K-1)/K M."""
        return 2 * (WORKERS - 1) / WORKERS * self.transfer_seconds


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("r110", "ResNet-110", 7, 1.1, 0.095, 3, 0.05, 58, 20),
        Setting("r152", "ResNet-152", 223, 23.6, 0.809, 3, 0.05, 146, 50),
        Setting("vgga", "VGG-A", 491, 51.1, 0.474, 2, 0.005, 100, 95),
    )
}


@dataclasses.dataclass(frozen=True)
class PaperResult:
    """Table 2: the time to its last test error, as a multiple of MPCA's; None = never.

    Attributes:
        ratio: time over MPCA's.
        utilisation: the share of the time in which workers compute, where the paper has it.
    """

    ratio: float | None
    utilisation: float | None = None


#: By setting and method.
RESULTS: dict[str, dict[str, PaperResult]] = {
    "r110": {
        "mpca": PaperResult(1.0, 1.0),
        "easgd": PaperResult(1.12, 0.97),
        "sparknet": PaperResult(1.39, 0.833),
        "server": PaperResult(4.00),
        "single": PaperResult(5.66),
    },
    "r152": {
        "mpca": PaperResult(1.0, 1.0),
        "easgd": PaperResult(1.23, 0.95),
        "sparknet": PaperResult(1.40, 0.833),
        "server": PaperResult(2.51),
        "single": PaperResult(4.67),
    },
    "vgga": {
        "mpca": PaperResult(1.0, 1.0),
        "easgd": PaperResult(1.67, 0.90),
        "sparknet": PaperResult(2.45, 0.5),
        "server": PaperResult(62.5 / 32.0),
        "single": PaperResult(None),
    },
}
