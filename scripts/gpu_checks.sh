#!/usr/bin/env bash
# All that one NVIDIA GPU can check, in under eight minutes: calibration, dense stacks, a mixture of experts,
# predicted beside measured. Records and the profile go to hardware_db/measured/.
#
#   scripts/gpu_checks.sh                     # the python of .venv, else python3
#   PYTHON=python3.12 scripts/gpu_checks.sh
#   MEGATRON_CORE=DIR scripts/gpu_checks.sh   # an unpacked megatron-core wheel, where it is not installed
#   scripts/gpu_checks.sh --shared-ranks      # instead, plans of several ranks that share the GPU: code, never time
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD${MEGATRON_CORE:+:$MEGATRON_CORE}${PYTHONPATH:+:$PYTHONPATH}"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader || true
fi
"$PYTHON" - <<'PY'
import importlib.util, sys
needed = ("torch", "megatron.core", "click", "numpy", "pydantic", "sympy", "tomli_w")
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
missing = [name for name in needed if not found(name)]
if missing:
    sys.exit(f"Error: {', '.join(missing)} not installed. Try: pip install 'advisor[run]', or MEGATRON_CORE=DIR.")
PY
# The limit from outside is for what the limits inside do not see. Of plans of several ranks each has its own.
limit=480
[[ " $* " == *" --shared-ranks "* ]] && limit=1800
exec timeout --kill-after=10 "$limit" "$PYTHON" -m executor.gpu_checks --seconds 460 "$@"
