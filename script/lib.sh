# Sourced by the scripts beside it: where things are, how to stop with one line, how to get the environment.
# shellcheck shell=bash

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck disable=SC2034  # used by the scripts that source this
venv="$root/.venv"
called_from="$PWD"

# A virtual environment of our own: what the caller's shell set for another one must not leak in.
# What Python compiled it keeps: hundreds of processes start from these sources.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1

# die STATUS TEXT...: one line on standard error, then the end. 1 = something failed, 2 = something is missing.
die() {
  local status=$1
  shift
  printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
  exit "$status"
}

# need_venv EXTRA...: the environment with these parts, and the Java that was found or fetched for Spark.
need_venv() {
  "$root/script/setup" "$@"
  if [ -x "$root/.java/bin/java" ]; then
    export JAVA_HOME="$root/.java"
  fi
  export PYSPARK_PYTHON="$venv/bin/python" # Spark starts its workers with python3 from PATH otherwise
  cd "$root"
}

# need_object_store: an environment with what stands for an object store in tests (tests/helpers/object_store.py).
need_object_store() {
  local wanted="$root/requirements/object-store.txt" made="$root/.venv-object-store"
  cmp -s "$wanted" "$made/installed.txt" && return
  echo "setting up $(basename "$made")" >&2
  "$venv/bin/python" -m venv --clear "$made"
  "$made/bin/python" -m pip install --quiet --no-input --no-deps -r "$wanted" >&2
  cp "$wanted" "$made/installed.txt"
}
