"""Lines of Megatron-Bridge beside those of Megatron-LM: step times, the configuration.

Formats: training/utils/train_utils.py (training_log) and training/config.py (log_non_default_values) of
megatron-bridge 0.6.2; print_yaml of ConfigContainer.
"""

from __future__ import annotations

import re

from executor.logs.record import BRIDGE, Log

STEP_TIME = re.compile(r"Step Time : ([\d.]+)s GPU utilization: ([\d.]+)\s*MODEL_TFLOP/s/GPU")
SUMMARY = "Configuration Summary (Non-Default Values"
SECTION = re.compile(r"^\[([a-z_]+)\](?: Non-default values.*)?:$")
FIELD = re.compile(r"^  ([A-Za-z_]\w*): (.*?)(?:\s+\(Mcore default: .*\))?$")
YAML_TARGET = re.compile(r"^_target_: megatron\.\S*ConfigContainer$")
YAML_PART = re.compile(r"^[a-z_]\w*:(?: .*)?$")
# Of Megatron's own lines some are indented too: ` [2026-03-04 ...] iteration`, ` > number of parameters`.
YAML_INNER = re.compile(r"^(?:\s+(?![>\[(])|- )\S")


class Reader:
    """Reads line by line; knows whether it is inside a dump of the configuration."""

    def __init__(self) -> None:
        self.in_summary = False
        self.section = ""
        self.in_yaml = False
        self.waiting = False

    def feed(self, line: str, log: Log) -> bool:
        """Whether the line was one of Megatron-Bridge's own."""
        if "Step Time :" in line and (told := STEP_TIME.search(line)):
            # The same interval follows as an iteration line with more digits of the time, and without the rate.
            log.told_rate = float(told[2])
            log.framework, self.in_yaml = BRIDGE, False
            log.count("bridge step", line)
            return True
        if SUMMARY in line:
            self.in_summary, self.section, log.framework = True, "", BRIDGE
            return True
        if self.in_summary:
            return self._summary(line, log)
        if YAML_TARGET.match(line):
            self.in_yaml, log.framework = True, BRIDGE
            log.yaml = [line]
            return True
        if self.in_yaml:
            if YAML_PART.match(line) or YAML_INNER.match(line):
                log.yaml.append(line)
                return True
            self.in_yaml = False
        return False

    def _summary(self, line: str, log: Log) -> bool:
        if found := SECTION.match(line):
            self.section = found[1]
        elif self.section and (field := FIELD.match(line)):
            log.configuration.append(f"{self.section}.{field[1]}={field[2]}")
        elif " iteration " in line:
            self.in_summary = False
            return False
        elif line.startswith("====") and self.section:
            self.in_summary = False
        return True

    def finish(self, log: Log) -> None:
        """Nothing is kept back."""
