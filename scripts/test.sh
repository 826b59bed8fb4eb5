#!/usr/bin/env bash
# Everything that must hold: style, types, import contracts, tests, documents equal to the code.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" run,dev
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --quiet --check .
.venv/bin/mypy
.venv/bin/lint-imports
# A file at a time on each core: files share what they build.
export OPENBLAS_NUM_THREADS=1
exec .venv/bin/python -m pytest -n auto --dist loadfile "$@"
