"""A TFX pipeline whose model is trained on Spark: examples -> StromTrainer -> a served prediction.

    python examples/tfx_pipeline.py                         # on this machine, in build/tfx-example
    python examples/tfx_pipeline.py --master spark://...    # on a cluster

It needs no more than the light SDK (`pip install ml-pipelines-sdk`; `make test-tfx` puts one into
build/tfx-sdk), so it brings a generator and a consumer of its own; with the whole TFX, ExampleGen,
Transform and Pusher take their places.
"""
# No `from __future__ import annotations`: TFX reads the annotations below as they are.

import argparse
import os
import pathlib
from typing import Any

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration import metadata, pipeline
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.types import standard_artifacts

from keras_strom.tfx import StromTrainer

ROOT = pathlib.Path(__file__).resolve().parent
FILES = {"train": 3, "eval": 1}


@component
def PointGenerator(  # noqa: N802  # A component is a class to who uses it.
    examples: OutputArtifact[standard_artifacts.Examples], count: Parameter[int]
) -> None:
    """Random points and whether they lie in a circle, as TFRecords; `count` for each file."""
    import numpy as np
    import tensorflow as tf

    examples.splits = list(FILES)
    random = np.random.default_rng(1)
    for split, files in FILES.items():
        folder = os.path.join(examples.uri, f"Split-{split}")
        os.makedirs(folder)
        for number in range(files):
            path = os.path.join(folder, f"points-{number:05}-of-{files:05}.gz")
            with tf.io.TFRecordWriter(path, "GZIP") as writer:
                for point in random.uniform(-1, 1, (count, 2)):
                    writer.write(example(point, inside=bool(point @ point < 0.6)))


@component
def Prediction(model: InputArtifact[standard_artifacts.Model]) -> None:  # noqa: N802
    """Serves two points as TensorFlow Serving would and writes the answers beside the model."""
    import tensorflow as tf

    folder = os.path.join(model.uri, "Format-Serving")
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    answers = serve(examples=tf.constant([example([0.0, 0.1]), example([0.9, -0.9])]))
    center, corner = answers["inside"].numpy()[:, 0]
    text = f"the centre {center:.3f}, the corner {corner:.3f}"
    pathlib.Path(model.uri, "prediction.txt").write_text(text)
    print(f"probability of lying in the circle: {text}")


def example(point: Any, inside: bool | None = None) -> bytes:
    """A serialized tf.train.Example of one point."""
    import tensorflow as tf

    features = {"point": tf.train.Feature(float_list=tf.train.FloatList(value=point))}
    if inside is not None:
        features["inside"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[inside]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def create_pipeline(root: str, master: str | None, workers: int, steps: int) -> Any:
    """The pipeline; its files and metadata go under `root`."""
    points = PointGenerator(count=1000)
    trainer = StromTrainer(
        examples=points.outputs["examples"],
        module_file=str(ROOT / "tfx_module.py"),
        train_args={"num_steps": steps},
        custom_config={"batch_size": 32},
        strom={"master": master, "num_proc": workers},
    )
    prediction = Prediction(model=trainer.outputs["model"])
    return pipeline.Pipeline(
        pipeline_name="points",
        pipeline_root=os.path.join(root, "artifacts"),
        components=[points, trainer, prediction],
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(
            os.path.join(root, "metadata.sqlite")
        ),
    )


def main() -> None:
    """Runs the pipeline once; a second run finds everything in the cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="build/tfx-example", help="where all machines see it")
    parser.add_argument("--master", default="local-cluster[2,1,1024]", help="Spark's master")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600, help="of all workers together")
    options = parser.parse_args()
    root = os.path.abspath(options.root)
    os.makedirs(root, exist_ok=True)
    LocalDagRunner().run(create_pipeline(root, options.master, options.workers, options.steps))


if __name__ == "__main__":
    main()
