"""The frame of every benchmark: what was measured where, in one form, and whether it is enough.

A benchmark is a module beside this file, run as `python -m benchmarks.NAME` from the top of the
tree. It makes one `Report`, adds rows (what was measured) and targets (what the design asks for),
and calls `finish`, which writes build/bench/NAME.json and shows tables. A missed target is shown
plainly and changes no exit status; an error does, by its exception.

Speeds are compared within one run: `interleave` runs all variants in turn, round after round, and
`Timings.speedup` is the median of the rounds' ratios, so that a machine that slows down for a while
slows down both sides.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal

import rich.box
import rich.console
import rich.table
import rich.text

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench"

Better = Literal["higher", "lower"]
Row = dict[str, Any]

#: Rounds of an interleaved run; the fewest that the codec's targets (docs/benchmarks.md) may be
#: judged by is 7.
ROUNDS = 9


@dataclasses.dataclass(frozen=True)
class Target:
    """What the design asks for, and what was measured.

    Attributes:
        name: the id, the same in the design, the JSON file and on the screen.
        value: as measured.
        goal: the value that is just good enough.
        better: which way is better.
    """

    name: str
    value: float
    goal: float
    better: Better = "higher"

    @property
    def met(self) -> bool:
        """Whether the value is at least as good as the goal."""
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


class Report:
    """One benchmark's results.

    Args:
        name: of the file: build/bench/NAME.json.
        title: a headline for the screen.
        output: the folder of the file.
        quick: whether this is a look alone (`--quick`): the name gets `-quick`, so that it takes no
            real result's place, and the file says so.

    Example:
        >>> report = Report("codec", "Speed of the codec")
        >>> report.row("scalar", group="Encode", ns_per_element=0.31)
        >>> report.target("encode_plain_t1", 0.93, goal=0.90)
        >>> report.finish()  # doctest: +SKIP
    """

    def __init__(
        self, name: str, title: str, output: pathlib.Path = OUTPUT, *, quick: bool = False
    ) -> None:
        self.name = f"{name}-quick" if quick else name
        self.title = f"{title} (a quick look)" if quick else title
        self.quick = quick
        self.machine = describe_machine()
        self.rows: list[Row] = []
        self.targets: list[Target] = []
        self._output = output
        self._names: set[tuple[str, str]] = set()
        self._attached: dict[str, Any] = {}

    @property
    def path(self) -> pathlib.Path:
        """Where `finish` writes to."""
        return self._output / f"{self.name}.json"

    def row(self, name: str, *, group: str = "", **cells: Any) -> None:
        """Adds one measurement.

        Args:
            name: what was measured; unique in its group.
            group: rows of a group stand in one table under this heading.
            **cells: columns; the name of a number ends with its unit. Plain JSON values.
        """
        self._claim(group, name)
        self.rows.append({"group": group, "name": name, **cells})

    def skip(self, name: str, reason: str) -> None:
        """Adds a row that says why a target, or a row, could not be measured here."""
        self.row(name, group="Skipped", skipped=reason)

    def skip_all(self, names: Iterable[str], reason: str) -> None:
        """`skip` for each of these, in the order of their names."""
        for name in sorted(names):
            self.skip(name, reason)

    def attach(self, name: str, value: Any) -> None:
        """Adds what the file holds besides, and no table shows: a plain JSON value."""
        self._claim("attached", name)
        self._attached[name] = value

    def target(self, name: str, value: float, goal: float, better: Better = "higher") -> None:
        """Adds what the design asks for."""
        self._claim("targets", name)
        self.targets.append(Target(name, float(value), float(goal), better))

    def write(self) -> None:
        """Writes the JSON file with what is there so far, so that a run cut off leaves figures."""
        self._output.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=2, allow_nan=False)
        self.path.write_text(text + "\n", encoding="utf-8")

    def finish(self, file: IO[str] | None = None) -> None:
        """Writes the JSON file and shows everything on `file` (None = standard output)."""
        self.write()
        _show(self, file)

    def as_json(self) -> dict[str, Any]:
        """The value that the file holds."""
        return {
            **({"quick": True} if self.quick else {}),
            "machine": self.machine,
            "rows": self.rows,
            "targets": [
                {**dataclasses.asdict(target), "met": target.met} for target in self.targets
            ],
            **self._attached,
        }

    def _claim(self, group: str, name: str) -> None:
        if (group, name) in self._names:
            raise ValueError(f"{name!r} is there twice in {group or 'the rows'}")
        self._names.add((group, name))


# ------------------------------------------------------------------ measuring


@dataclasses.dataclass(frozen=True)
class Timings:
    """Times of several variants, measured in turn.

    Attributes:
        rounds: for each variant the time of every round, in any one unit; round i of all variants
            was measured close together.
    """

    rounds: Mapping[str, Sequence[float]]

    def median(self, variant: str) -> float:
        """The variant's typical time."""
        return statistics.median(self.rounds[variant])

    def speedup(self, variant: str, over: str) -> float:
        """How many times as fast as `over` the variant is: the median of the rounds' ratios."""
        return statistics.median(self._ratios(variant, over))

    def spread(self, variant: str, over: str) -> tuple[float, float]:
        """The quartiles of the ratios behind `speedup`: what the machine's noise does to it."""
        low, _, high = statistics.quantiles(self._ratios(variant, over), n=4, method="inclusive")
        return low, high

    def _ratios(self, variant: str, over: str) -> list[float]:
        pairs = zip(self.rounds[variant], self.rounds[over], strict=True)
        return [other / own for own, other in pairs]


def interleave(
    variants: Mapping[str, Callable[[], float | None]],
    *,
    rounds: int = ROUNDS,
    warm_ups: int = 1,
    seed: int = 1,
) -> Timings:
    """Runs all variants in turn, in another order each round, and returns their seconds.

    Args:
        variants: what to run. A function that returns a number has measured itself, without its
            preparations, say; one that returns None is timed from call to return.
        rounds: how often.
        warm_ups: rounds before those, which do not count.
        seed: of the orders.
    """
    shuffle = random.Random(seed).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warm_ups + rounds):
        order = list(variants)
        shuffle(order)
        for name in order:
            begin = time.perf_counter()
            own = variants[name]()
            elapsed = time.perf_counter() - begin
            if number >= warm_ups:
                seconds[name].append(elapsed if own is None else own)
    return Timings(seconds)


# ------------------------------------------------------------------ the machine


def two_processors() -> tuple[set[int], set[int]]:
    """Two of those that this process may use, which need not begin with 0.

    The same one twice where there is but one.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others[:1]) or {first}


def describe_machine() -> dict[str, Any]:
    """What a reader must know to judge figures: plain JSON values."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{_memory_bytes() / 2**30:.1f} GiB",
        "last_level_cache": f"{last_level_cache_bytes() / 2**20:g} MiB",
        "gpu": _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": _first_line(os.environ.get("CXX", "c++"), "--version"),
        "python": platform.python_version(),
        "huge_pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "load_before": round(os.getloadavg()[0], 2),
        "revision": _revision(),
    }


def _revision() -> str:
    """The commit, and where the tree has changes, or there is no git, a hash of the code's own."""
    git = ("git", "-C", str(ROOT))
    commit = _first_line(*git, "describe", "--always", "--dirty")
    if commit is None:
        return f"sources-{_hash(path.read_bytes() for path in _sources())}"
    if not commit.endswith("-dirty"):
        return commit
    changes = subprocess.run(
        [*git, "diff", "--no-ext-diff", "--binary", "HEAD"], capture_output=True
    )
    return f"{commit}-{_hash([changes.stdout])}"


def _sources() -> list[pathlib.Path]:
    folders = ("benchmarks", "custom_ops", "keras_strom", "spark", "tests/support")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    kinds = {".py", ".cc", ".h", ".cu", ".cuh"}
    return sorted(path for path in found if path.suffix in kinds and path.is_file())


def _hash(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:8]


def _processor() -> str:
    """Model, and the widest vector instructions, on which kernels are chosen."""
    text = _read("/proc/cpuinfo")
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    model = fields.get("model name", platform.processor() or platform.machine())
    if "cpu family" in fields:
        model += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    flags = fields.get("flags", "").split()
    widest = [name for name in ("avx512_vbmi2", "avx512f", "avx2") if name in flags]
    return f"{model}, {widest[0]}" if widest else model


def last_level_cache_bytes() -> int:
    """Of the first processor's largest cache; 32 MiB where the system does not say."""
    caches = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20}
    sizes = [_read(str(path)).strip() for path in caches]
    found = [int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units]
    return max(found, default=32 * 2**20)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _chosen(text: str) -> str | None:
    """The [chosen] word of a line of choices."""
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found else None


def _first_line(*command: str) -> str | None:
    """What a command answers first; None where it is missing or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.splitlines()
    return lines[0].strip() if lines else None


# ------------------------------------------------------------------ the screen


def _show(report: Report, file: IO[str] | None) -> None:
    console = rich.console.Console(file=file, highlight=False)
    if not console.is_terminal:
        console = rich.console.Console(file=file, highlight=False, width=120)
    console.rule(report.title)
    for key, value in report.machine.items():
        if value is not None:
            console.print(f"{key.replace('_', ' '):>12}  {value}", markup=False)
    for group, rows in _groups(report.rows):
        console.print(_table(group, rows))
    if report.targets:
        console.print(_target_table(report.targets))
        missed = [target.name for target in report.targets if not target.met]
        console.print(f"targets met: {len(report.targets) - len(missed)} of {len(report.targets)}")
        if missed:
            console.print(f"targets missed: {', '.join(missed)}", style="bold red")
    console.print(f"written to {report.path}", soft_wrap=True, markup=False)


def _groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    yield from groups.items()


def _table(group: str, rows: list[Row]) -> rich.table.Table:
    columns = list(
        dict.fromkeys(key for row in rows for key in row if key not in ("group", "name"))
    )
    table = rich.table.Table(
        title=group or None, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD
    )
    table.add_column("")
    for column in columns:
        is_text = any(isinstance(row.get(column), str) for row in rows)
        table.add_column(column.replace("_", " "), justify="left" if is_text else "right")
    for row in rows:
        table.add_row(
            rich.text.Text(row["name"]), *(rich.text.Text(cell(row.get(key))) for key in columns)
        )
    return table


def _target_table(targets: list[Target]) -> rich.table.Table:
    table = rich.table.Table(
        title="Targets", title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD
    )
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("")
    for target in targets:
        sign = ">=" if target.better == "higher" else "<="
        verdict = ("met", "green") if target.met else ("MISSED", "bold red")
        table.add_row(
            target.name,
            cell(target.value),
            f"{sign} {cell(target.goal)}",
            rich.text.Text(*verdict),
        )
    return table


def cell(value: object) -> str:
    """A value as tables and pictures show it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
