"""`make bench-codec`: how fast updates are encoded, coded and applied, and how long messages are.

The targets are those of docs/benchmarks.md, by the same names.
Speeds are ratios from interleaved runs:
custom_ops/bench/codec_bench times what is native, this module what is Python, turn by turn. What
runs on one thread is measured by the processor's time, so that other work disturbs it little; two
threads are measured by the clock.

Arrays lie outside of the processor's caches: each is as large as its last-level cache at least, so
that memory is what a pass waits for. What a training of a small model meets is measured besides, at
density 1e-3 with all arrays inside of that cache; those targets end with `_in_cache`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping

from matplotlib.axes import Axes

from benchmarks import message_sizes, other_encoders, pictures, report
from benchmarks.native_codec import NativeCodec, Sample

#: Densities of the target "encode without coding".
DENSITIES = (0.0, 1e-4, 1e-3, 1e-2, 0.1)
CODED = (1e-3, 1e-2, 5e-2)
REFERENCE = "r += u"
STEP_REFERENCE = "r += after - before; after = before"
FULL_REFERENCE = "r += after - before"
DL4J = "Deeplearning4j's loop"

Variant = Callable[[], float]


def main() -> None:
    """Measures everything and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--elements", type=int, default=_outside(), help="of the arrays outside of the caches"
    )
    parser.add_argument("--rounds", type=int, default=report.ROUNDS)
    parser.add_argument("--training-steps", type=int, default=160)
    arguments = parser.parse_args()
    result = report.Report("codec", "Speed of the codec")
    with NativeCodec(arguments.elements) as native:
        bench = CodecBench(result, native, arguments.rounds)
        bench.encoding()
        bench.two_threads()
        bench.bitmaps()
        bench.whole_step()
        bench.coder()
        bench.applying()
        bench.other_libraries()
    with NativeCodec(_inside()) as native:
        bench.in_cache(native)
    bench.sizes(arguments.training_steps)
    bench.waiting()
    for name in ("gpu_encode_copy", "gpu_encode_cub"):
        result.skip(name, "no GPU" if result.machine["gpu"] is None else "see make bench-cuda")
    bench.draw()
    result.finish()


class CodecBench:
    """The parts of the benchmark; each adds its rows and targets to the report."""

    def __init__(self, result: report.Report, native: NativeCodec, rounds: int) -> None:
        self._report = result
        self._native = native
        self._rounds = rounds
        self._speeds: dict[str, dict[float, float]] = {}
        self._sizes: dict[float, float] = {}
        self._samples: dict[tuple[str, float], Sample] = {}

    def encoding(self) -> None:
        """One thread: residual and update in memory, entries out."""
        best = self._native.kernels[-1]
        coded = f"{best}, split Rice and CRC"
        for density in sorted({*DENSITIES, *CODED, 3e-2}):
            variants = {
                REFERENCE: self._timer("add"),
                **{
                    name: self._timer("encode", density, kernel=name)
                    for name in self._native.kernels
                },
                coded: self._timer("encode_coded", density),
                DL4J: self._timer("dl4j_list", density),
            }
            timings = self._interleave(variants)
            for name in variants:
                speed = timings.speedup(name, over=REFERENCE)
                self._speeds.setdefault(name, {})[density] = speed
            if density in (1e-2, 0.1):
                self._report.target(
                    f"vs_dl4j_sparse_{_short(density)}",
                    timings.speedup(best, over=DL4J),
                    goal=3.5 if density == 1e-2 else 6,
                )
        for name, speeds in self._speeds.items():
            self._report.row(
                name,
                group=f"Encode, one thread: speed relative to {REFERENCE}, by density",
                **{_short(density): speed for density, speed in speeds.items()},
            )
        self._report.target("encode_plain_t1", self._worst(best), goal=0.90)
        for density, goal in zip(CODED, (0.88, 0.82, 0.65), strict=True):
            value = self._speeds[coded][density]
            self._report.target(f"encode_coded_{_short(density)}", value, goal)
        if "avx2" in self._native.kernels:
            self._report.target("encode_avx2", self._worst("avx2"), goal=0.90)
            self._report.target("encode_avx2_3e-2", self._speeds["avx2"][3e-2], goal=0.70)
        else:
            self._report.skip("encode_avx2", "this processor has no AVX2")

    def two_threads(self) -> None:
        """The same on two threads, against the reference on two."""
        speeds = {}
        for density in DENSITIES:
            timings = self._interleave(
                {
                    REFERENCE: self._timer("add", threads=2),
                    "encode": self._timer("encode", density, threads=2),
                }
            )
            speeds[density] = timings.speedup("encode", over=REFERENCE)
        self._report.row(
            self._native.kernels[-1],
            group=f"Encode, two threads: speed relative to {REFERENCE} on two, by density",
            **{_short(density): speed for density, speed in speeds.items()},
        )
        self._report.target("encode_plain_t2", min(speeds.values()), goal=0.90)

    def bitmaps(self) -> None:
        """The dense forms: a bit an element and a sign an entry, or four states an element."""
        speeds = {}
        for density, goal in ((1e-2, 4), (0.1, 9)):
            timings = self._interleave(
                {
                    REFERENCE: self._timer("add"),
                    "bitmap": self._timer("encode_bitmap", density),
                    "message": self._timer("encode_bitmap_coded", density),
                    "four": self._timer("four_states", density),
                    "four message": self._timer("four_states_coded", density),
                    "dl4j": self._timer("dl4j_bitmap", density),
                }
            )
            speeds[density] = timings.speedup("bitmap", over=REFERENCE)
            versus = timings.speedup("bitmap", over="dl4j")
            self._report.row(
                f"density {_short(density)}",
                group="Bitmap, one thread",
                of_reference=speeds[density],
                message_of_reference=timings.speedup("message", over=REFERENCE),
                four_states_of_reference=timings.speedup("four", over=REFERENCE),
                four_states_message_of_reference=timings.speedup("four message", over=REFERENCE),
                deeplearning4j_of_reference=timings.speedup("dl4j", over=REFERENCE),
                over_deeplearning4j=versus,
            )
            self._report.target(f"vs_dl4j_bitmap_{_short(density)}", versus, goal)
        self._report.target("bitmap_encode", min(speeds.values()), goal=0.95)

    def whole_step(self) -> None:
        """Difference, encode and apply in one pass: three reads and two writes."""
        plain = STEP_REFERENCE
        speeds = {}
        for density in DENSITIES:
            timings = self._interleave(
                {
                    plain: self._timer("difference"),
                    "after": self._timer("step_into_after", density),
                    "before": self._timer("step_into_before", density),
                }
            )
            speeds[density] = timings.speedup("after", over=plain)
            self._report.row(
                f"density {_short(density)}",
                group=f"A whole step, one thread: speed relative to {plain}",
                new_value_over_after=speeds[density],
                new_value_over_before=timings.speedup("before", over=plain),
            )
        self._report.target("fused_step", min(speeds.values()), goal=0.93)
        full = {}
        for density in DENSITIES:
            timings = self._interleave(
                {FULL_REFERENCE: self._timer("update"), "full": self._timer("step_full", density)}
            )
            full[density] = timings.speedup("full", over=FULL_REFERENCE)
        self._report.row(
            self._native.kernels[-1],
            group="A whole step of StromStrategy's default, one thread: speed relative to "
            f"{FULL_REFERENCE}, by density",
            **{_short(density): speed for density, speed in full.items()},
        )
        self._report.target("full_step", min(full.values()), goal=0.95)

    def in_cache(self, native: NativeCodec) -> None:
        """The same at density 1e-3 where all arrays lie in the last-level cache."""
        density = 1e-3
        outside, self._native = self._native, native
        against = {
            REFERENCE: {
                "encode_plain_t1": self._timer("encode", density),
                "encode_coded_1e-3": self._timer("encode_coded", density),
                "bitmap_encode": self._timer("encode_bitmap", density),
            },
            STEP_REFERENCE: {"fused_step": self._timer("step_into_after", density)},
            FULL_REFERENCE: {"full_step": self._timer("step_full", density)},
        }
        if "avx2" in native.kernels:
            against[REFERENCE]["encode_avx2"] = self._timer("encode", density, kernel="avx2")
        timers = {REFERENCE: "add", STEP_REFERENCE: "difference", FULL_REFERENCE: "update"}
        goals = {"encode_plain_t1": 0.90, "encode_avx2": 0.90, "encode_coded_1e-3": 0.88}
        goals |= {"bitmap_encode": 0.95, "fused_step": 0.93, "full_step": 0.95}
        for reference, variants in against.items():
            timings = self._interleave({reference: self._timer(timers[reference]), **variants})
            for name in variants:
                speed = timings.speedup(name, over=reference)
                self._report.row(
                    name,
                    group=f"In the last-level cache ({native.elements:,} elements), density 1e-3",
                    relative_to=reference,
                    speed=speed,
                )
                self._report.target(f"{name}_in_cache", speed, goal=goals[name])
        self._native = outside

    def coder(self) -> None:
        """Entries to bytes and back, without looking for them."""
        encoded, decoded = [], []
        for density in CODED:
            timings = self._interleave(
                {name: self._timer(name, density) for name in ("code", "check", "decode")}
            )
            entries = self._samples["code", density].entries
            nanoseconds = {
                name: 1e9 * timings.median(name) / entries for name in ("code", "check", "decode")
            }
            encoded.append(nanoseconds["code"])
            decoded.append(nanoseconds["decode"])
            self._report.row(
                f"density {_short(density)}",
                group="Split Rice, CRC included: ns an entry",
                encode=nanoseconds["code"],
                decode=nanoseconds["decode"],
                check_what_came_in=nanoseconds["check"],
            )
        self._report.target("coder_encode_ns", max(encoded), goal=3, better="lower")
        self._report.target("coder_decode_ns", max(decoded), goal=2.2, better="lower")

    def applying(self) -> None:
        """Messages added to parameters in memory."""
        timings = self._interleave(
            {
                "scale": self._timer("scale"),
                "sparse": self._timer("apply", 1e-2),
                "bitmap": self._timer("apply_bitmap", 0.1),
                "four states": self._timer("apply_four_states", 0.1),
                "one by one": self._timer("apply_8_one_by_one", 1e-2),
                "together": self._timer("apply_8_together", 1e-2),
            }
        )
        names = {
            "scale": "p *= c (one read, one write)",
            "sparse": "a message, density 1e-2",
            "bitmap": "a bitmap, density 0.1",
            "four states": "a bitmap of four states, density 0.1",
            "one by one": "8 messages one by one, density 1e-2",
            "together": "8 messages together, density 1e-2",
        }
        for key, name in names.items():
            self._report.row(
                name,
                group="Apply, one thread",
                ns_an_element=1e9 * timings.median(key) / self._native.elements,
                of_one_read_one_write=timings.speedup(key, over="scale"),
            )
        self._report.target("bitmap_apply", timings.speedup("bitmap", over="scale"), goal=0.88)
        together = timings.speedup("together", over="one by one")
        self._report.target("apply_8_messages", together, goal=2)

    def other_libraries(self) -> None:
        """NumPy, TensorFlow's own ops and, where it is installed, PyTorch."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        updates = other_encoders.Updates(self._native.elements)
        kinds: dict[str, Callable[[other_encoders.Updates, float], other_encoders.Encoder]] = {
            "NumPy": other_encoders.NumPyEncoder,
            "TensorFlow composite": other_encoders.TensorFlowEncoder,
        }
        if importlib.util.find_spec("torch"):
            kinds["PyTorch top-k"] = other_encoders.TorchTopK
        times: dict[str, dict[str, float]] = {name: {} for name in kinds}
        for density in (1e-3, 1e-2, 0.1):
            variants = {"ours": self._timer("encode", density)}
            for name, kind in kinds.items():
                variants[name] = updates.timer(kind(updates, density), density)
            timings = self._interleave(variants)
            for name in kinds:
                times[name][_short(density)] = timings.speedup("ours", over=name)
        for name, by_density in times.items():
            group = "Encode, one thread: how many times as long as ours, by density"
            self._report.row(name, group=group, **by_density)
        versus = min(times["TensorFlow composite"].values())
        self._report.target("vs_tf_composite", versus, goal=7)
        if "PyTorch top-k" in times:
            self._report.target("vs_torch_topk", min(times["PyTorch top-k"].values()), goal=40)
        else:
            self._report.skip("vs_torch_topk", "PyTorch is not installed")

    def sizes(self, training_steps: int) -> None:
        """Bits an entry: at random places, and of a real training."""
        worst = 0.0
        for density in (1e-4, 1e-3, 1e-2, 5e-2, 0.1):
            size = message_sizes.random_message(10000, density)
            worst = max(worst, size.over_bound)
            self._sizes[density] = size.bits_per_entry
            self._report.row(
                f"random places, density {_short(density)}",
                group="Message size, header included",
                entries=size.entries,
                bits_an_entry=size.bits_per_entry,
                bound=message_sizes.entropy_bound(density),
                over_bound=size.over_bound,
                deeplearning4j=message_sizes.LIST_BITS,
            )
        self._report.target("size_iid", worst, goal=1.03, better="lower")
        real = [
            size for size in message_sizes.real_messages(training_steps) if size.entries >= 1500
        ]
        longest = max(real, key=lambda size: size.over_bound)
        for name, size in (("the last step", real[-1]), ("the worst step", longest)):
            density = size.entries / size.elements
            self._report.row(
                f"Fashion-MNIST, Adam: {name} of {len(real)}",
                group="Message size, header included",
                entries=size.entries,
                bits_an_entry=size.bits_per_entry,
                bound=message_sizes.entropy_bound(density),
                over_bound=size.over_bound,
                deeplearning4j=message_sizes.LIST_BITS,
            )
        self._report.target("size_real", longest.over_bound, goal=1.05, better="lower")

    def waiting(self) -> None:
        """What halves buy: how much waits in the residuals, and for how many bits an element."""
        for threshold in (1.0, 1.4, 2.0, 2.8, 4.0):
            for coding in ("auto", "bitmap4"):
                waiting = message_sizes.waiting(coding, threshold)
                self._report.row(
                    f"{coding}, threshold {threshold}",
                    group="What waits, in standard deviations of the updates",
                    mean_residual=waiting.mean_residual,
                    bits_an_element=waiting.bits_per_element,
                    density=waiting.density,
                )

    # -------------------------------------------------------------- the picture

    def draw(self) -> None:
        """Speed and size by density, in build/bench/codec.png."""
        figure, (left, right) = pictures.picture(2)
        self._draw_speeds(left)
        self._draw_sizes(right)
        pictures.save(figure, "codec")

    def _draw_speeds(self, axes: Axes) -> None:
        best = self._native.kernels[-1]
        coded = f"{best}, split Rice and CRC"
        lines = {
            best: (f"ours ({best})", pictures.BLUE),
            coded: ("ours, coded into a message", pictures.SKY),
            "blocks": ("ours, vectors by the compiler", pictures.GREEN),
            DL4J: ("Deeplearning4j's loop", pictures.VERMILION),
        }
        pictures.caption(
            axes,
            "Speed of encoding, one thread",
            "density: entries an element",
            "relative to r += u, the least there is to do",
        )
        axes.axhline(1, color=pictures.GREY, linewidth=1.2, linestyle="--")
        pictures.label(axes, 0.1, 1, "r += u", pictures.GREY)
        for name, (text, color) in lines.items():
            speeds = {p: speed for p, speed in self._speeds[name].items() if p > 0}
            axes.plot(list(speeds), list(speeds.values()), color=color, marker="o", linewidth=2)
            pictures.label(axes, max(speeds), speeds[max(speeds)], text, color)
        axes.set_xscale("log")
        axes.set_ylim(0, None)

    def _draw_sizes(self, axes: Axes) -> None:
        pictures.caption(
            axes,
            "Size of a message",
            "density: entries an element",
            "bits an entry, sign and header included",
        )
        densities = list(self._sizes)
        bound = [message_sizes.entropy_bound(density) for density in densities]
        lists = [message_sizes.LIST_BITS] * len(densities)
        axes.plot(densities, lists, color=pictures.VERMILION, linewidth=2)
        pictures.label(axes, densities[-1], lists[-1], "int32 list", pictures.VERMILION)
        ours = list(self._sizes.values())
        axes.plot(densities, ours, color=pictures.BLUE, marker="o", linewidth=2)
        pictures.label(axes, densities[-1], ours[-1], "ours", pictures.BLUE, xytext=(6, 5))
        axes.plot(densities, bound, color=pictures.BLACK, linewidth=1.2, linestyle="--")
        pictures.label(
            axes, densities[-1], bound[-1], "entropy bound", pictures.BLACK, xytext=(6, -9)
        )
        axes.set_xscale("log")
        axes.set_ylim(0, None)

    # -------------------------------------------------------------- measuring

    def _timer(self, name: str, density: float = 0, threads: int = 1, kernel: str = "") -> Variant:
        def run() -> float:
            sample = self._native.measure(name, density, threads, kernel)
            self._samples[name, density] = sample
            return sample.seconds

        return run

    def _interleave(self, variants: Mapping[str, Variant]) -> report.Timings:
        return report.interleave(variants, rounds=self._rounds)

    def _worst(self, name: str) -> float:
        return min(self._speeds[name][density] for density in DENSITIES)


def _outside() -> int:
    """Elements of arrays of which two are twice the last-level cache; at least 16 million."""
    return max(1 << 24, report.last_level_cache_bytes() // 4)


def _inside() -> int:
    """Elements of arrays of which four fill half of the last-level cache, a power of two."""
    return 1 << (report.last_level_cache_bytes() // 32).bit_length() - 1


def _short(density: float) -> str:
    """0, 1e-4, 1e-3, ... as in the targets' names."""
    if density == 0:
        return "0"
    mantissa, _, exponent = f"{density:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


if __name__ == "__main__":
    main()
