# Sourced by the other scripts: a virtual environment in .venv with what "$1" needs (extras of pyproject.toml).
# Repeatable: does nothing when the environment is already complete.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Error: $python is not Python 3.11 or newer. Set PYTHON=/path/to/python3.11 and run this again." >&2
    exit 2
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
# Without a GPU the pinned release is enough. On machines with a GPU pip takes the usual CUDA wheels.
torch=${ADVISOR_TORCH:-$(command -v nvidia-smi >/dev/null 2>&1 && echo "torch>=2.6" || echo "torch==2.13.0")}
stamp=.venv/.installed-$1
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "Setting up .venv (a few minutes the first time) ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$torch" numpy
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$1]"
    touch "$stamp"
fi
# Pages are tested in a real browser: Debian's Chromium, put in where that may be done. Elsewhere those tests skip.
if [[ ",$1," == *,dev,* ]] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing Chromium for the tests of pages ..." >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 ||
            echo "Warning: Chromium could not be installed." >&2
    fi
fi
