"""StromTrainer among TFX's own components, with the taxi data that the whole TFX ships, on Spark.

`make test-tfx` makes an environment for it where Python 3.10 is.
"""

from pathlib import Path
from typing import Any

import pytest

from keras_strom.tfx.installation import has_tfx

if not has_tfx():
    pytest.skip(
        "the whole TFX is not installed; make test-tfx sets it up where Python 3.10 is",
        allow_module_level=True,
    )

import tensorflow as tf
import tensorflow_model_analysis as tfma
from tfx import components
from tfx.components.trainer.component import Trainer
from tfx.examples.chicago_taxi_pipeline import taxi_utils_native_keras
from tfx.orchestration import metadata, pipeline
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.proto import trainer_pb2

from keras_strom.tfx import StromTrainer

pytestmark = pytest.mark.jobs

# The module that TFX ships would do, but for Keras: its tf.keras is Keras 2.
# It stands alone in its folder, for TFX packs all modules that it finds there.
MODULE = str(Path(__file__).parent / "taxi" / "taxi_module.py")
DATA = Path(taxi_utils_native_keras.__file__).parent / "data" / "simple"


def create_pipeline(root: Path) -> Any:
    examples = components.CsvExampleGen(input_base=str(DATA))
    statistics = components.StatisticsGen(examples=examples.outputs["examples"])
    schema = components.SchemaGen(
        statistics=statistics.outputs["statistics"], infer_feature_shape=True
    )
    transform = components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        module_file=MODULE,
    )
    trainer = StromTrainer(
        module_file=MODULE,
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema.outputs["schema"],
        statistics=statistics.outputs["statistics"],
        train_args=trainer_pb2.TrainArgs(num_steps=200),
        eval_args=trainer_pb2.EvalArgs(num_steps=5),
        strom={"num_proc": 2, "master": "local-cluster[2,1,1024]"},
    )
    assert isinstance(trainer, Trainer)
    evaluator = components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        schema=schema.outputs["schema"],
        eval_config=evaluation(),
    )
    return pipeline.Pipeline(
        pipeline_name="taxi",
        pipeline_root=str(root / "artifacts"),
        components=[examples, statistics, schema, transform, trainer, evaluator],
        metadata_connection_config=metadata.sqlite_metadata_connection_config(
            str(root / "metadata.sqlite")
        ),
    )


def evaluation() -> Any:
    """A model is blessed that is right in 70 of 100 cases."""
    bound = tfma.GenericValueThreshold(lower_bound={"value": 0.7})
    accuracy = tfma.MetricConfig(
        class_name="BinaryAccuracy", threshold=tfma.MetricThreshold(value_threshold=bound)
    )
    return tfma.EvalConfig(
        model_specs=[
            tfma.ModelSpec(
                signature_name="serving_default",
                label_key="tips_xf",
                preprocessing_function_names=["transform_features"],
            )
        ],
        slicing_specs=[tfma.SlicingSpec()],
        metrics_specs=[tfma.MetricsSpec(metrics=[accuracy])],
    )


@pytest.mark.timeout(900)
def test_the_taxi_pipeline_trains_on_two_workers(tmp_path: Path) -> None:
    LocalDagRunner().run(create_pipeline(tmp_path))
    (model,) = (tmp_path / "artifacts" / "StromTrainer" / "model").iterdir()
    serve = tf.saved_model.load(str(model / "Format-Serving")).signatures["serving_default"]
    (examples,) = (tmp_path / "artifacts" / "CsvExampleGen" / "examples").iterdir()
    files = [str(path) for path in (examples / "Split-eval").iterdir()]
    raw = list(tf.data.TFRecordDataset(files, "GZIP").take(200))
    probabilities = serve(examples=tf.stack(raw))["outputs"].numpy()[:, 0]
    assert probabilities.shape == (200,)
    tips, fares = (
        [tf.train.Example.FromString(one.numpy()).features.feature[name] for one in raw]
        for name in ("tips", "fare")
    )
    big = [
        tip.float_list.value[0] > 0.2 * fare.float_list.value[0]
        for tip, fare in zip(tips, fares, strict=True)
    ]
    right = sum(one == (p > 0.5) for one, p in zip(big, probabilities, strict=True))
    assert right > 140
    (logs,) = (tmp_path / "artifacts" / "StromTrainer" / "model_run").iterdir()
    assert list(logs.glob("train/events.*"))
    (blessing,) = (tmp_path / "artifacts" / "Evaluator" / "blessing").iterdir()
    assert (blessing / "BLESSED").exists()
