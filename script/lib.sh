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

# need_peers: the servers and clients that script/bench peers compares with, in an environment of their own.
# RabbitMQ is a package of Debian: root installs it, and without it its rows are left out.
need_peers() {
  local wanted="$root/requirements/peers.txt" made="$root/.venv-peers" package missing=()
  if ! cmp -s "$wanted" "$made/installed.txt"; then
    echo "setting up $(basename "$made")" >&2
    "$venv/bin/python" -m venv --clear "$made"
    "$made/bin/python" -m pip install --quiet --no-input --no-deps -r "$wanted" >&2
    cp "$wanted" "$made/installed.txt"
  fi
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  for package in rabbitmq-server redis-tools; do
    dpkg-query --status "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] || install_stopped "${missing[@]}"
}

# install_stopped PACKAGE...: packages of Debian, without starting their services.
install_stopped() {
  local policy=/usr/sbin/policy-rc.d status=0 ours=""
  echo "installing $* with apt-get" >&2
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    ours=yes
  fi
  {
    DEBIAN_FRONTEND=noninteractive timeout 600 apt-get update -qq \
      && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends "$@"
  } >/dev/null </dev/null || status=$?
  [ -z "$ours" ] || rm -f "$policy"
  [ "$status" = 0 ] || echo "apt-get failed: the rows of $* are left out" >&2
}
