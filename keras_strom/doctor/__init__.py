"""Looks at a machine before a run: what `keras-strom doctor` says.

    from keras_strom.doctor import examine
    for finding in examine(workers=4, network=NetworkConfig(network_mask="10.0.0.0/16")):
        finding.grade, finding.words, finding.remedy

Nothing is changed on the machine: what is written is deleted, and what is bound is let go.
"""

from keras_strom.doctor.examination import examine
from keras_strom.doctor.finding import Finding, Grade

__all__ = ["Finding", "Grade", "examine"]
