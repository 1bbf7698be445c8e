"""Looks at a machine before a run: what `keras-strom doctor` says.

    from keras_strom.doctor import examine
    report = Report(examine(workers=4, network=NetworkConfig(network_mask="10.0.0.0/16")))
    print(report)

Nothing is changed on the machine: what is written is deleted, and what is bound is let go.
"""

from keras_strom.doctor.examination import examine
from keras_strom.doctor.finding import Finding, Grade
from keras_strom.doctor.hosts import examine_hosts
from keras_strom.doctor.machine import secret
from keras_strom.doctor.report import Report

__all__ = ["Finding", "Grade", "Report", "examine", "examine_hosts", "secret"]
