#!/usr/bin/env bash
# Makes sure that there is a browser for the tests of pages. On Debian and its like, as root, it installs one.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" > /dev/null; then
    exit 0
  fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
  echo "There is no chromium, which tests/integration/test_replay_report.py needs: apt-get install chromium" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core
