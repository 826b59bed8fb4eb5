#!/usr/bin/env bash
# The main job: the plan for Llama-3 70B on 64 B200 and why, then a real two-process training run here.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" run
.venv/bin/advisor explain --model 70b --gpus 64 --gpu b200
.venv/bin/advisor run --model tiny-gpt --gpus 2 --gpu local
