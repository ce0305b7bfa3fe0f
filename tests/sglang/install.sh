#!/usr/bin/env bash
# install.sh VENV: makes VENV an environment with a stock SGLang that runs on the CPU, and Trimtab in it.
#
#   PYTHON          interpreter for a new VENV (default python3)
#   SGLANG_VERSION  0.5.16, 0.5.18, 0.5.20, 0.5.22 or 0.5.23 (default)
#
# Safe to run again: it brings an existing VENV up to date. Takes one to two minutes and 2.7 GB. The CPU build
# of torch is enough; pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) say where it is.
set -euo pipefail

fail() {
    echo "tests/sglang/install.sh: $*" >&2
    exit 1
}

[ $# -eq 1 ] || fail "give the environment's folder: tests/sglang/install.sh .venv-sglang"
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
sglang=${SGLANG_VERSION:-0.5.23}

# The protobuf that the environments of these SGLang releases have.
case $sglang in
    0.5.16 | 0.5.18 | 0.5.20) protobuf='protobuf>=6.33,<6.34' ;;
    0.5.22 | 0.5.23) protobuf='protobuf>=7.36,<7.37' ;;
    *) fail "SGLANG_VERSION=$sglang is not known here; 0.5.16, 0.5.18, 0.5.20, 0.5.22 and 0.5.23 are" ;;
esac

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null ||
    fail "$python is not Python 3.11 or 3.12; name one: PYTHON=/path/to/python3.11"

mkdir -p "$1"
venv=$(cd "$1" && pwd)
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    [ -e "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] || fail "$venv is neither empty nor an environment"
    "$python" -m venv --clear "$venv" || fail "cannot create $venv with $python"
fi

pip_install() {
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$@" ||
        fail "pip could not install: $*"
}

echo "SGLang $sglang for the CPU goes into $venv (a minute or two)"
pip_install -r "$here/requirements.txt" 'grpcio>=1.76' "$protobuf"
pip_install --no-deps torchvision==0.28.0 "sglang==$sglang"
# Its version stays the same when its files change: install it anew each time.
pip_install --no-deps --force-reinstall "$here/shim"
pip_install --no-deps --editable "$root"

"$venv/bin/python" "$here/check_environment.py" "$sglang" ||
    fail "the environment in $venv does not work; remove the folder and run this again"
