#!/usr/bin/env bash
# Makes this machine ready: Java 17 or later, and a Docker engine that answers. `aftershock doctor --install` calls it, and
# ci/bootstrap; $PYTHON is a Python with the docker package. With --without-engine, Java alone: enough to judge stored evidence.
# Idempotent; says what it will install before it does. It never installs what only building images needs (debootstrap,
# Maven, Go): the image builder asks for those when it comes to that.
set -euo pipefail

readonly JAVA_MIN=17
readonly ENGINE_WAIT_S=45
readonly ENGINE_LOG=/var/log/aftershock-dockerd.log
readonly ENGINE_PID=/var/run/aftershock-dockerd.pid
: "${PYTHON:=python3}"

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
refuse() { say "$*"; exit 3; }
have() { command -v "$1" >/dev/null 2>&1; }
debian_root() { [ "$(id -u)" = 0 ] && have apt-get; }

apt_updated=no
apt_install() {
  say "installing with apt-get: $*"
  if [ "$apt_updated" = no ]; then
    apt-get update -qq >/dev/null || refuse "apt-get update failed (its words are above); mend apt's sources and call again"
    apt_updated=yes
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    refuse "apt-get install $* failed (its words are above); install it by hand and call again"
}

# --- Java --------------------------------------------------------------------------------------------------------

java_version() { # the major version, from java's own words: "17.0.15" and "1.8.0_402" both occur
  java -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}
java_ok() { have java && [ "$(java_version || true)" -ge "$JAVA_MIN" ] 2>/dev/null; }

java_ready() {
  java_ok && return
  debian_root || refuse "Java $JAVA_MIN or later is needed (Spark judges the runs); install a JRE, put java on the PATH, call again"
  if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    apt_install openjdk-17-jre-headless
  else
    apt_install default-jre-headless
  fi
  hash -r
  java_ok || refuse "java on the PATH is still not version $JAVA_MIN or later after the installation; mend the PATH and call again"
}

# --- Docker engine -----------------------------------------------------------------------------------------------

# The socket is asked directly, which takes 20 ms; a context of the docker client (Docker Desktop, Colima) counts as well.
engine_answers() {
  case "${DOCKER_HOST:=}" in
    '') [ "$(ping_socket /var/run/docker.sock)" = 200 ] || { have docker && docker version >/dev/null 2>&1; } ;;
    unix://*) [ "$(ping_socket "${DOCKER_HOST#unix://}")" = 200 ] ;;
    *) "$PYTHON" -c 'import docker; docker.from_env(timeout=5).ping()' >/dev/null 2>&1 ;;
  esac
}
ping_socket() {
  "$PYTHON" -S - "$1" 2>/dev/null <<'PYTHON'
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(5)
    s.connect(sys.argv[1])
    s.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    print(s.recv(64).split(b" ")[1].decode())
PYTHON
}

no_engine() { # said where we can't, or must not, start one
  if [ -n "${DOCKER_HOST:-}" ]; then
    refuse "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST; start it there, or unset DOCKER_HOST"
  elif [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ]; then
    refuse "the Docker engine's socket is there but $(id -un) may not use it; join the docker group, or run as root"
  else
    refuse "no Docker engine answers; start Docker (Docker Desktop, systemctl start docker, or root on Debian/Ubuntu and this script) and call again"
  fi
}

install_engine() {
  local missing=()
  have dockerd || missing+=(docker.io)
  have iptables || missing+=(iptables)
  have ip || missing+=(iproute2)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
}

lives_as() { # NAME PIDFILE; a zombie has ended, whatever its name
  local pid
  pid=$(cat "$2" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] &&
    ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null
}

start_engine() {
  # one that is only now going down, or coming up, is given a moment
  local deadline=$((SECONDS + 15))
  while lives_as dockerd /var/run/docker.pid && [ "$SECONDS" -lt "$deadline" ]; do
    if engine_answers; then return; fi
    sleep 0.3
  done
  # one that died without cleaning up leaves pid files, which would keep the next one from starting
  lives_as dockerd /var/run/docker.pid || rm -f /var/run/docker.pid
  lives_as containerd /var/run/docker/containerd/containerd.pid || rm -f /var/run/docker/containerd/containerd.pid
  say "starting dockerd (log: $ENGINE_LOG)"
  setsid dockerd >>"$ENGINE_LOG" 2>&1 </dev/null &
  printf '%s\n' "$!" >"$ENGINE_PID"
}

wait_for_engine() {
  local deadline=$((SECONDS + ENGINE_WAIT_S))
  until engine_answers; do
    if ! kill -0 "$(cat "$ENGINE_PID")" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
      tail -n 15 "$ENGINE_LOG" >&2 || true
      refuse "dockerd did not answer within $ENGINE_WAIT_S s; the last lines of $ENGINE_LOG are above"
    fi
    sleep 0.3
  done
}

engine_ready() {
  engine_answers && return
  { [ -z "${DOCKER_HOST:-}" ] && debian_root; } || no_engine
  exec 9>/var/lock/aftershock-engine # two checkouts may bootstrap at once: one starts the engine, the other finds it
  flock 9
  engine_answers && return
  install_engine
  start_engine 9>&-
  wait_for_engine
  exec 9>&-
}

prepare() { # [--without-engine]
  java_ready
  [ "${1:-}" = --without-engine ] || engine_ready
}

[ "${BASH_SOURCE[0]}" != "$0" ] || prepare "$@"
